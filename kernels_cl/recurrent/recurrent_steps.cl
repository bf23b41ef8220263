// recurrent_steps: time steps `step` to `end` (exclusive) of LSTM, GRU (linear_before_reset 1) or
// RNN on CPU devices in one launch, float32.
// D directions, T steps, B sequences, H elements per state; all strides in elements, of step _t,
// direction _d, sequence _b. Operands of recurrent_steps:
//   y         written: states of all steps, at y_t, y_d, y_b; also read as the previous step's
//             states
//   hidden    written: state after each sequence's last step, at state_d, state_b;  cell  read and
//             written, same layout (LSTM)
//   gx        read if depth is 0: x W^T [D, row, GATES * H], row = t * x_t + b * x_b. With BYTES:
//             int32 sums [row][direction][block][gate][T_VW] of 8-bit levels, for an x of scale
//             x_scale
//   x         read if depth > 0: inputs [row, depth], which are multiplied by w here
//   w, r      read: input and recurrence weights [D][block][k][gate][T_VW], zero past state H; k is
//             an input or a state, a block is T_VW states. With BYTES: panels of
//             common/recurrent_bytes.clh
//   bias [D, 2 * GATES, H] (W biases, then R biases), lens [B], peephole [D, 3, H] (i o f),
//                      first_hidden, first_cell  read: present if F_BIAS, F_LENS, F_PEEPHOLE,
//                      F_HIDDEN, F_CELL
// A work-group of one work-item has a direction, a stripe of `height` sequences, and a part of the
// states: `span` blocks. Without S_TEAM a launch of several steps has one part (all blocks), so
// that no work-item waits for others.
//   S_TEAM    1: the work-items of a stripe form a team for all steps of a launch: each claims
//             unclaimed parts of a step, first its own (its weights are in its core's cache), later
//             one that is late. It waits for claimed parts only, so a team finishes even if
//             work-items run one by one. board, zero at first, has parts + 1 ints per team: number
//             of finished parts in all steps, then per part the number of claimed steps
//   GATES     4 LSTM (order i o f c), 3 GRU (z r h), 1 RNN
//   T_MR      sequences per register tile, by all gates of T_VW states
//   T_KS      independent sums over k for a tile of one sequence
//   BYTES     1: weights are 8-bit integers; rows of x and of states are quantized to 8 bits here,
//             into the work-item's part of the scratch `records`, each state row by its own range
//             or, if `together`, by that of all sequences of the stripe; x by its range in all live
//             steps
//   FUNCTIONS  defines act_0 (gates), act_1 (candidate), act_2 (LSTM's cell output), functions of
//              (direction, x)
//   F_COUPLED  1: the forget gate of LSTM is 1 - input gate;  S_WHOLE  1: H is a multiple of T_VW
//   reverse   1: all directions run backward; otherwise direction 1 does, if there is one
#ifndef GATES
#define GATES 4
#define BYTES 0
#define T_VW 8
#define T_MR 2
#define T_KS 2
#define S_WHOLE 0
#define S_TEAM 1
#define F_BIAS 1
#define F_LENS 1
#define F_PEEPHOLE 1
#define F_COUPLED 0
#define F_HIDDEN 1
#define F_CELL 1
#define LENS_T int
#define FUNCTIONS                                                      \
  static F act_0(const IDX_T d, F v) { return c_sigmoid(v); }          \
  static F act_1(const IDX_T d, F v) { return c_tanh(v); }             \
  static F act_2(const IDX_T d, F v) { return c_tanh(v); }
#endif
#define VW T_VW
#define T_NV GATES
#define FIRST_STATE(block, H) ((block) * VW)
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/tile.clh"
#include "common/gates.clh"
FUNCTIONS

#if BYTES
#include "common/widen.clh"
#include "common/byte_records.clh"
#include "common/dynamic_levels.clh"
#include "common/recurrent_bytes.clh"
#define WEIGHT_T uchar
#define SUM_T int
#define TILE_ROWS(left) tile_rows(left)
#define BYTES_PARAM                                                                        \
  , IN(float, x_scale), OUT(uchar, records), const IDX_T together, const IDX_T directions, \
      const IDX_T w_depth
#define W_DEPTH w_depth
#define PANEL_ELEMS(K) PANEL_BYTES(K)
#else
#define WEIGHT_T float
#define SUM_T float
#define TILE_ROWS(left) i_min(T_MR, left)
#define BYTES_PARAM
#define W_DEPTH depth
#define PANEL_ELEMS(K) ((K) * GATES * VW)

#define WIDTH (GATES * VW)
#define SETS(X) CAT(ROWS_, T_KS)(X)
#define PANEL(i, j) LOAD_F(panel + (i) * WIDTH + (j) * VW)
#define LOAD_B(i, j) const F b##j = PANEL(0, j);
#define MULTIPLY_SET(i)              \
  {                                  \
    const F a_k = (F)(a[k + i]);     \
    VECTORS(MULTIPLY_PANEL, i)       \
  }
#define MULTIPLY_PANEL(i, j) acc##i##_##j = a_k * PANEL(i, j) + acc##i##_##j;
#define MULTIPLY_REST(i, j) acc##i##_##j = a_k * PANEL(0, j) + acc##i##_##j;
#define ADD_SET(i) VECTORS(ADD_TO_TILE, i)
#define ADD_TO_TILE(i, j) tile[j] += acc##i##_##j;
#define POINT_ROW(i) __global const float *const a##i = rows[i];
#define ADD_ROW(i) VECTORS(ADD_TO_ROW, i)
#define ADD_TO_ROW(i, j) tile[i * T_NV + j] += acc##i##_##j;

// Multiplies a vector a [depth] by a panel [depth][GATES * VW], and adds the product to `tile`,
// GATES vectors.
__attribute__((always_inline))
static inline void multiply_one(F *tile, __global const float *a, const IDX_T depth,
                                __global const float *panel) {
  SETS(ZERO_ROW)
  IDX_T k = 0;
  for (; k + T_KS <= depth; k += T_KS, panel += T_KS * WIDTH) { SETS(MULTIPLY_SET) }
  for (; k < depth; ++k, panel += WIDTH) {
    const F a_k = (F)(a[k]);
    VECTORS(MULTIPLY_REST, 0)
  }
  SETS(ADD_SET)
}

// Defines name(tile, rows, depth, panel): adds rows[i] [depth] times panel to vectors i * GATES of
// tile.
#define MULTIPLY_ROWS(name, EACH)                                                                   \
  __attribute__((always_inline)) static inline void name(                                           \
      F *tile, __global const float *const *rows, const IDX_T depth, __global const float *panel) { \
    EACH(POINT_ROW)                                                                                 \
    EACH(ZERO_ROW)                                                                                  \
    for (IDX_T k = 0; k < depth; ++k, panel += WIDTH) {                                             \
      VECTORS(LOAD_B, 0)                                                                            \
      EACH(MULTIPLY_ROW)                                                                            \
    }                                                                                               \
    EACH(ADD_ROW)                                                                                   \
  }
MULTIPLY_ROWS(multiply_two, ROWS_2)
MULTIPLY_ROWS(multiply_many, ROWS)
#endif

#if S_WHOLE
#define LOAD_STATES(p) LOAD_F(p)
#define STORE_STATES(p, v) STORE_F(p, v)
#else
#define LOAD_STATES(p) (count == VW ? LOAD_F(p) : load_lanes(p, count, 0.0f))
#define STORE_STATES(p, v)      \
  if (count == VW)              \
    STORE_F(p, v);              \
  else                          \
    store_lanes(p, v, count);
#endif
#if F_BIAS
#define BIAS_PARAM , IN(float, bias)
#define BIAS(k) LOAD_STATES(AT(bias) + (d * 2 * GATES + (k)) * H + h)
#else
#define BIAS_PARAM
#define BIAS(k) (F)(0.0f)
#endif
#if F_LENS
#define LENS_PARAM , IN(LENS_T, lens)
#define LENGTH(b) (IDX_T)clamp((long)AT(lens)[b], (long)0, (long)T)  // steps of sequence b
#define LIVE_STEPS(live) LONGEST(live, AT(lens), B, T)
#else
#define LENS_PARAM
#define LENGTH(b) T
#define LIVE_STEPS(live) const IDX_T live = T;
#endif
#if F_PEEPHOLE
#define PEEPHOLE_PARAM , IN(float, peephole)
#define PEEPHOLE(k) LOAD_STATES(AT(peephole) + (d * 3 + (k)) * H + h)
#else
#define PEEPHOLE_PARAM
#define PEEPHOLE(k) (F)(0.0f)
#endif
#if F_HIDDEN
#define HIDDEN_PARAM , IN(float, first_hidden)
#define LAST_STATE(b, length) \
  (s ? STATE_OF(s - 1, b, length) : AT(first_hidden) + d * state_d + (b) * state_b)
#define STATES_DEPTH H
#else
#define HIDDEN_PARAM
#define LAST_STATE(b, length) STATE_OF(s - 1, b, length)
#define STATES_DEPTH (s ? H : 0)
#endif
#define STATE_OF(s, b, length) AT(y) + time_of(s, length, backward) * y_t + d * y_d + (b) * y_b
#define INPUT_OF(b, length) AT(x) + (time_of(s, length, backward) * x_t + (b) * x_b) * depth
#if GATES == 4
#define CELL_PARAM , INOUT(float, cell)
#else
#define CELL_PARAM
#endif
#if F_CELL
#define FIRST_CELL_PARAM , IN(float, first_cell)
#else
#define FIRST_CELL_PARAM
#endif

#if S_TEAM
#define BOARD_PARAM , INOUT(int, board)
#define PATIENCE 2048  // reads of the board (tens of microseconds) before a part is late
#define FEW_LOOKS 64

static inline bool takes_part(volatile __global int *board, const IDX_T s, const IDX_T part) {
  return atomic_cmpxchg(&board[1 + part], s, s + 1) == s;
}

// Claims an unclaimed part of step s and returns it: `own`, or if that is claimed already, a part
// of another work-item that is late. A part is late after PATIENCE reads of the board, or after
// FEW_LOOKS if this work-item claimed a late part in this step or the one before. *late is the last
// step in which it did. Returns `parts` once all parts are finished.
static inline IDX_T take_part(volatile __global int *board, const IDX_T s, const IDX_T own,
                              const IDX_T parts, IDX_T *late) {
  if (takes_part(board, s, own)) return own;
  for (IDX_T looks = 1; atomic_add(board, 0) < (s + 1) * parts; ++looks) {
    if (looks % (*late >= s - 1 ? FEW_LOOKS : PATIENCE)) continue;
    for (IDX_T part = 0; part < parts; ++part) {
      if (!takes_part(board, s, part)) continue;
      *late = s;
      return part;
    }
  }
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  return parts;
}

static inline void finish_part(volatile __global int *board) {
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  atomic_inc(board);
}
#define FOR_PARTS(s)                                                                        \
  for (IDX_T part = take_part(team, s, own, parts, &late); part < parts; finish_part(team), \
             part = take_part(team, s, own, parts, &late))
#else
#define BOARD_PARAM
#define FOR_PARTS(s) for (IDX_T part = own; part == own; ++part)
#endif

// Products of gate k for sequence i of the tile, with their bias: from x, from the states, and
// both.
#define X_SUM(k) (from_x[i * GATES + (k)] + BIAS(k))
#define H_SUM(k) (from_h[i * GATES + (k)] + BIAS(GATES + (k)))
#define GATE(k) (X_SUM(k) + H_SUM(k))

static inline IDX_T time_of(const IDX_T step, const IDX_T length, const bool backward) {
  return backward && step < length ? length - 1 - step : step;
}

__kernel SINGLE_ITEM
void recurrent_steps(INOUT(float, y), OUT(float, hidden) CELL_PARAM, IN(SUM_T, gx), IN(float, x),
                     IN(WEIGHT_T, w), IN(WEIGHT_T, r) BIAS_PARAM LENS_PARAM PEEPHOLE_PARAM HIDDEN_PARAM
                         FIRST_CELL_PARAM BOARD_PARAM BYTES_PARAM, const IDX_T step, const IDX_T end,
                     const IDX_T T, const IDX_T B, const IDX_T H, const IDX_T depth,
                     const IDX_T reverse, const IDX_T height, const IDX_T span, const IDX_T x_t,
                     const IDX_T x_b, const IDX_T state_d, const IDX_T state_b, const IDX_T y_t,
                     const IDX_T y_d, const IDX_T y_b) {
  const IDX_T blocks = (H + VW - 1) / VW;
  const IDX_T parts = (blocks + span - 1) / span;
  const IDX_T stripes = (B + height - 1) / height;
  const IDX_T at = get_global_id(0);
  const IDX_T d = at / (parts * stripes);
  const IDX_T b_first = at / parts % stripes * height;
  const IDX_T b_end = i_min(b_first + height, B);
  const IDX_T own = at % parts;
  const bool backward = reverse || d == 1;
#if S_TEAM
  volatile __global int *const team = AT(board) + at / parts * (parts + 1);
  IDX_T late = -2;
#endif
#if BYTES
  const IDX_T record = RECORD_BYTES(H) + RECORD_BYTES(depth);  // of a row
  __global uchar *const own_records = AT(records) + at * height * record;
  float2 x_range = (float2)(0.0f);
  if (depth) {
    LIVE_STEPS(live)
    x_range = range_of(AT(x), live * B * depth);
  }
#endif
  for (IDX_T s = step; s < end; ++s) {
    FOR_PARTS(s) {
#if BYTES
      for (IDX_T b0 = b_first, rows; b0 < b_end; b0 += rows) {
        rows = TILE_ROWS(b_end - b0);
        __global uchar *const h_record = own_records + (b0 - b_first) * record;
        __global uchar *const x_record = h_record + rows * RECORD_BYTES(H);
        float2 range = (float2)(0.0f);
        for (IDX_T b = b_first; b < b_end && together; ++b) {
          const float2 of_row = range_of(LAST_STATE(b, LENGTH(b)), STATES_DEPTH);
          range = (float2)(min(range.s0, of_row.s0), max(range.s1, of_row.s1));
        }
        for (IDX_T i = 0; i < rows; ++i) {
          const IDX_T b = b0 + i, length = LENGTH(b);
          if (!together) range = range_of(LAST_STATE(b, length), STATES_DEPTH);
          if (STATES_DEPTH) round_row(h_record, rows, i, LAST_STATE(b, length), H, range);
          if (depth) round_row(x_record, rows, i, INPUT_OF(b, length), depth, x_range);
        }
      }
#endif
      for (IDX_T block = part * span; block < i_min(part * span + span, blocks); ++block) {
        const IDX_T h = block * VW, panel = d * blocks + block;
#if !S_WHOLE
        const IDX_T count = i_min(VW, H - h);
#endif
        __global const WEIGHT_T *const r_panel = AT(r) + panel * PANEL_ELEMS(H);
        __global const WEIGHT_T *const w_panel = AT(w) + panel * PANEL_ELEMS(W_DEPTH);
        for (IDX_T b0 = b_first, rows; b0 < b_end; b0 += rows) {
          rows = TILE_ROWS(b_end - b0);
          F from_x[T_MR * GATES], from_h[T_MR * GATES];
          for (IDX_T j = 0; j < T_MR * GATES; ++j) from_x[j] = from_h[j] = (F)(0.0f);
#if BYTES
          __global const uchar *const h_record = own_records + (b0 - b_first) * record;
          if (STATES_DEPTH) multiply_tile(from_h, h_record, rows, H, r_panel);
          if (depth) multiply_tile(from_x, h_record + rows * RECORD_BYTES(H), rows, depth, w_panel);
#else
          __global const float *states[T_MR], *inputs[T_MR];
          for (IDX_T i = 0; i < T_MR; ++i) {  // rows past the last are read as the last one
            const IDX_T b = b0 + i_min(i, rows - 1), length = LENGTH(b);
            inputs[i] = INPUT_OF(b, length);
            states[i] = LAST_STATE(b, length);
          }
          if (rows == 1) {
            multiply_one(from_h, states[0], STATES_DEPTH, r_panel);
            multiply_one(from_x, inputs[0], depth, w_panel);
          } else if (rows == 2) {
            multiply_two(from_h, states, STATES_DEPTH, r_panel);
            multiply_two(from_x, inputs, depth, w_panel);
          } else {
            multiply_many(from_h, states, STATES_DEPTH, r_panel);
            multiply_many(from_x, inputs, depth, w_panel);
          }
#endif
          for (IDX_T i = 0; i < rows; ++i) {
            const IDX_T b = b0 + i;
            const IDX_T length = LENGTH(b);
            const IDX_T state = d * state_d + b * state_b + h;
            const IDX_T t = time_of(s, length, backward);
            __global float *const to = AT(y) + t * y_t + d * y_d + b * y_b + h;
#if GATES == 4
#if F_CELL
            const F old = s ? LOAD_STATES(AT(cell) + state) : LOAD_STATES(AT(first_cell) + state);
#else
            const F old = s ? LOAD_STATES(AT(cell) + state) : (F)(0.0f);
#endif
#endif
            if (s >= length) {
              STORE_STATES(to, (F)(0.0f));
              if (s == 0) {  // a sequence of no length keeps its first state
#if F_HIDDEN
                STORE_STATES(AT(hidden) + state, LOAD_STATES(LAST_STATE(b, length) + h));
#else
                STORE_STATES(AT(hidden) + state, (F)(0.0f));
#endif
#if GATES == 4
                STORE_STATES(AT(cell) + state, old);
#endif
              }
              continue;
            }
            if (depth == 0) {
              const IDX_T row = t * x_t + b * x_b;
#if BYTES
              __global const I *const sums =
                  (__global const I *)(AT(gx) + (row * directions * blocks + panel) * BYTE_WIDTH);
              __global const F *const scales =
                  (__global const F *)(w_panel + PANEL_BYTES(w_depth)) - GATES;
              for (IDX_T k = 0; k < GATES; ++k)
                from_x[i * GATES + k] = WIDE_AS(float, sums[k]) * (scales[k] * *AT(x_scale));
#else
              __global const float *const sums = AT(gx) + (d * T * B + row) * GATES * H + h;
              for (IDX_T k = 0; k < GATES; ++k) from_x[i * GATES + k] = LOAD_STATES(sums + k * H);
#endif
            }
#if GATES == 4
            const F in = act_0(d, GATE(0) + PEEPHOLE(0) * old);
#if F_COUPLED
            const F forget = (F)(1.0f) - in;
#else
            const F forget = act_0(d, GATE(2) + PEEPHOLE(2) * old);
#endif
            const F c = forget * old + in * act_1(d, GATE(3));
            const F next = act_0(d, GATE(1) + PEEPHOLE(1) * c) * act_2(d, c);
            STORE_STATES(AT(cell) + state, c);
#elif GATES == 3
            const F z = act_0(d, GATE(0));
            const F candidate = act_1(d, X_SUM(2) + act_0(d, GATE(1)) * H_SUM(2));
            F old = (F)(0.0f);
            if (STATES_DEPTH) old = LOAD_STATES(LAST_STATE(b, length) + h);
            const F next = ((F)(1.0f) - z) * candidate + z * old;
#else
            const F next = act_0(d, GATE(0));
#endif
            STORE_STATES(to, next);
            if (s == length - 1) { STORE_STATES(AT(hidden) + state, next); }
          }
        }
      }
    }
  }
}

#if !BYTES
#include "common/pack_gates.clh"
#endif
