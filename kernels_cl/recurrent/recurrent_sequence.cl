// Time steps `step` to `end` (exclusive) of LSTM, GRU (linear_before_reset 1) or RNN for one
// sequence without a length on CPU devices, in one launch, float32. A work-group of one work-item
// computes a direction. D directions, T steps, H elements per state, at least T_VW; blocks of T_VW
// states, the last of which ends at state H and so may overlap the one before it.
//   y         written: states of all steps, at strides y_t (step) and y_d (direction) in elements;
//             also read as the previous step's states
//   hidden    written: state after the last step, [D, H];  cell  written, [D, H] (LSTM)
//   cells     scratch, read and written: cell states [D][block][T_VW] (LSTM)
//   gx        read: x W^T [D, T, GATES * H]
//   r         read: recurrence weights [D][block][k][gate][T_VW], k is a state
//   bias [D, 2 * GATES, H] (W biases, then R biases), peephole [D, 3, H] (i o f), first_hidden and
//             first_cell [D, H]  read: present if F_BIAS, F_PEEPHOLE, F_HIDDEN, F_CELL
//   GATES     4 LSTM (order i o f c), 3 GRU (z r h), 1 RNN
//   T_KS      independent sums over k per gate
//   FUNCTIONS, F_COUPLED, reverse  as in recurrent_steps.cl
#ifndef GATES
#define GATES 4
#define T_VW 8
#define T_KS 2
#define F_BIAS 1
#define F_PEEPHOLE 1
#define F_COUPLED 0
#define F_HIDDEN 1
#define F_CELL 1
#define FUNCTIONS                                                      \
  static F act_0(const IDX_T d, F v) { return c_sigmoid(v); }          \
  static F act_1(const IDX_T d, F v) { return c_tanh(v); }             \
  static F act_2(const IDX_T d, F v) { return c_tanh(v); }
#endif
#define VW T_VW
#define T_NV GATES
#define FIRST_STATE(block, H) i_min((block) * VW, (H) - VW)
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/tile.clh"
#include "common/gates.clh"
FUNCTIONS

#define WIDTH (GATES * VW)
#define SETS(X) CAT(ROWS_, T_KS)(X)
#define PANEL(i, j) LOAD_F(panel + (i) * WIDTH + (j) * VW)
#define MULTIPLY_SET(i)              \
  {                                  \
    const F a_k = (F)(last[k + i]);  \
    VECTORS(MULTIPLY_PANEL, i)       \
  }
#define MULTIPLY_PANEL(i, j) acc##i##_##j = a_k * PANEL(i, j) + acc##i##_##j;
#define ADD_SET(i) VECTORS(ADD_TO_SUM, i)
#define ADD_TO_SUM(i, j) sum##j += acc##i##_##j;
#define DECLARE_SUM(i, j) F sum##j = (F)(0.0f);

#if F_BIAS
#define BIAS_PARAM , IN(float, bias)
#define BIAS(k) LOAD_F(AT(bias) + (d * 2 * GATES + (k)) * H + h)
#else
#define BIAS_PARAM
#define BIAS(k) (F)(0.0f)
#endif
#if F_PEEPHOLE
#define PEEPHOLE_PARAM , IN(float, peephole)
#define PEEPHOLE(k, c) +LOAD_F(AT(peephole) + (d * 3 + (k)) * H + h) * c
#else
#define PEEPHOLE_PARAM
#define PEEPHOLE(k, c)
#endif
#if F_HIDDEN
#define HIDDEN_PARAM , IN(float, first_hidden)
#define FIRST_HIDDEN AT(first_hidden) + d * H
#define DEPTH H
#else
#define HIDDEN_PARAM
#define FIRST_HIDDEN AT(y)
#define DEPTH (s ? H : 0)
#endif
#if GATES == 4
#define CELL_PARAM , OUT(float, cell), INOUT(float, cells)
#else
#define CELL_PARAM
#endif
#if F_CELL
#define FIRST_CELL_PARAM , IN(float, first_cell)
#define FIRST_CELL LOAD_F(AT(first_cell) + d * H + h)
#else
#define FIRST_CELL_PARAM
#define FIRST_CELL (F)(0.0f)
#endif

#define X_SUM(k) (LOAD_F(from_x + (k) * H) + BIAS(k))
#define H_SUM(k) (sum##k + BIAS(GATES + (k)))
#define GATE(k) (X_SUM(k) + H_SUM(k))

__kernel SINGLE_ITEM
void recurrent_sequence(INOUT(float, y), OUT(float, hidden) CELL_PARAM, IN(float, gx), IN(float, r)
                            BIAS_PARAM PEEPHOLE_PARAM HIDDEN_PARAM FIRST_CELL_PARAM,
                        const IDX_T step, const IDX_T end, const IDX_T T, const IDX_T H,
                        const IDX_T reverse, const IDX_T y_t, const IDX_T y_d) {
  const IDX_T blocks = (H + VW - 1) / VW;
  const IDX_T d = get_global_id(0);
  const bool backward = reverse || d == 1;
  const IDX_T stride = backward ? -y_t : y_t;
  for (IDX_T s = step; s < end; ++s) {
    const IDX_T t = backward ? T - 1 - s : s;
    __global float *const to = AT(y) + t * y_t + d * y_d;
    __global const float *const last = s ? to - stride : FIRST_HIDDEN;
    for (IDX_T i = 0; i < blocks; ++i) {
      // Every other step starts with the weights that are still in the cache.
      const IDX_T block = s & 1 ? blocks - 1 - i : i;
      const IDX_T h = FIRST_STATE(block, H);
      __global const float *panel = AT(r) + (d * blocks + block) * H * WIDTH;
      __global const float *const from_x = AT(gx) + (d * T + t) * GATES * H + h;
      SETS(ZERO_ROW)
      VECTORS(DECLARE_SUM, 0)
      const IDX_T depth = DEPTH;
      IDX_T k = 0;
      for (; k + T_KS <= depth; k += T_KS, panel += T_KS * WIDTH) { SETS(MULTIPLY_SET) }
      for (; k < depth; ++k, panel += WIDTH) { MULTIPLY_SET(0) }
      SETS(ADD_SET)
#if GATES == 4
      __global F *const kept = (__global F *)(AT(cells)) + d * blocks + block;
      const F old = s ? *kept : FIRST_CELL;
      const F in = act_0(d, GATE(0) PEEPHOLE(0, old));
#if F_COUPLED
      const F forget = (F)(1.0f) - in;
#else
      const F forget = act_0(d, GATE(2) PEEPHOLE(2, old));
#endif
      const F c = forget * old + in * act_1(d, GATE(3));
      const F next = act_0(d, GATE(1) PEEPHOLE(1, c)) * act_2(d, c);
      *kept = c;
      if (s == T - 1) STORE_F(AT(cell) + d * H + h, c);
#elif GATES == 3
      const F z = act_0(d, GATE(0));
      const F candidate = act_1(d, X_SUM(2) + act_0(d, GATE(1)) * H_SUM(2));
      F old = (F)(0.0f);
      if (DEPTH) old = LOAD_F(last + h);
      const F next = candidate + z * (old - candidate);
#else
      const F next = act_0(d, GATE(0));
#endif
      STORE_F(to + h, next);
      if (s == T - 1) { STORE_F(AT(hidden) + d * H + h, next); }
    }
  }
}

#include "common/pack_gates.clh"
