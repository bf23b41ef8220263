// Steps of LSTM, GRU (whose candidate resets its product) or RNN on CPU devices, many in one launch.
// A work-item has a direction, a stripe of `height` sequences and a part of the states, `span` blocks
// of T_VW; it goes through the steps from `step` to `end`: the states of a step are what y has of the
// step before. For several steps it has all blocks, so that nothing waits for others, or S_TEAM is 1.
//   S_TEAM    the parts of a stripe are a team, each of whose work-items takes a part of a step that
//             nobody has taken: its own at once, so that its weights stay in the core's cache, that
//             of another if this is late. It waits for parts that are taken, thus by a work-item that
//             runs, so that one alone ends, too. The board of a team, zeros at first, has how many
//             parts of steps are done, and of each part how often it was taken
// Weights are packed as [direction][block][k][gate][T_VW], with zeros past state H (pack_gates): a
// tile has all gates of T_MR sequences and T_VW states.
//   GATES     of the op: LSTM 4 (i o f c), GRU 3 (z r h), RNN 1
//   gx        the products of the inputs, [D, T * B, GATES * H]; or depth is not 0, and x of so many
//             columns is multiplied by w here
//   T_KS      elements of k at once where there is one sequence: sums that do not wait for each other
//   FUNCTIONS, F_COUPLED  as in lstm.cl
//   S_WHOLE   H is a multiple of T_VW
#ifndef GATES
#define GATES 4
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
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/tile.clh"
FUNCTIONS

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

// Adds a row of A times a panel to the tile.
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

// Add rows of A times a panel to the tile.
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
#define LENGTH(b) (IDX_T)clamp((long)AT(lens)[b], (long)0, (long)T)  // see recurrent.clh
#else
#define LENS_PARAM
#define LENGTH(b) T
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
#define FIRST_HIDDEN(b) AT(first_hidden) + d * state_d + (b) * state_b
#else
#define HIDDEN_PARAM
#endif
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
#define PATIENCE 2048  // looks at the board, some tens of microseconds, until another's part is late

static inline bool takes_part(volatile __global int *board, const IDX_T s, const IDX_T part) {
  return atomic_cmpxchg(&board[1 + part], s, s + 1) == s;
}

// Takes a part of a step; `parts` where all of them are done.
static inline IDX_T take_part(volatile __global int *board, const IDX_T s, const IDX_T own,
                              const IDX_T parts) {
  if (takes_part(board, s, own)) return own;
  for (IDX_T looks = 1; atomic_add(board, 0) < (s + 1) * parts; ++looks) {
    if (looks % PATIENCE) continue;
    for (IDX_T part = 0; part < parts; ++part)
      if (takes_part(board, s, part)) return part;
  }
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  return parts;
}

static inline void finish_part(volatile __global int *board) {
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  atomic_inc(board);
}
#define FOR_PARTS(s)                                                                 \
  for (IDX_T part = take_part(team, s, own, parts); part < parts; finish_part(team), \
             part = take_part(team, s, own, parts))
#else
#define BOARD_PARAM
#define FOR_PARTS(s) for (IDX_T part = own; part == own; ++part)
#endif

// Of the sum s of products, by gate: of x and of the states.
#define X_SUM(k) (from_x[i * GATES + (k)] + BIAS(k))
#define H_SUM(k) (from_h[i * GATES + (k)] + BIAS(GATES + (k)))
#define GATE(k) (X_SUM(k) + H_SUM(k))

static inline IDX_T time_of(const IDX_T step, const IDX_T length, const bool backward) {
  return backward && step < length ? length - 1 - step : step;
}

__kernel SINGLE_ITEM
void recurrent_steps(INOUT(float, y), OUT(float, hidden) CELL_PARAM, IN(float, gx), IN(float, x),
                     IN(float, w), IN(float, r) BIAS_PARAM LENS_PARAM PEEPHOLE_PARAM HIDDEN_PARAM
                         FIRST_CELL_PARAM BOARD_PARAM, const IDX_T step, const IDX_T end, const IDX_T T,
                     const IDX_T B, const IDX_T H, const IDX_T depth, const IDX_T reverse,
                     const IDX_T height, const IDX_T span, const IDX_T x_t, const IDX_T x_b,
                     const IDX_T state_d, const IDX_T state_b, const IDX_T y_t, const IDX_T y_d,
                     const IDX_T y_b) {
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
#endif
  for (IDX_T s = step; s < end; ++s) {
    FOR_PARTS(s)
    for (IDX_T block = part * span; block < i_min(part * span + span, blocks); ++block) {
      const IDX_T h = block * VW;
#if !S_WHOLE
      const IDX_T count = i_min(VW, H - h);
#endif
      __global const float *const r_panel = AT(r) + (d * blocks + block) * H * WIDTH;
      __global const float *const w_panel = AT(w) + (d * blocks + block) * depth * WIDTH;
      for (IDX_T b0 = b_first; b0 < b_end; b0 += T_MR) {
        const IDX_T rows = i_min(T_MR, b_end - b0);
        __global const float *states[T_MR], *inputs[T_MR];
        IDX_T states_depth = H;
        for (IDX_T i = 0; i < T_MR; ++i) {  // rows past the last are read as the last one
          const IDX_T b = b0 + i_min(i, rows - 1);
          const IDX_T length = LENGTH(b);
          inputs[i] = AT(x) + (time_of(s, length, backward) * x_t + b * x_b) * depth;
          states[i] = AT(y) + time_of(s - 1, length, backward) * y_t + d * y_d + b * y_b;
#if F_HIDDEN
          if (s == 0) states[i] = FIRST_HIDDEN(b);
#else
          if (s == 0) states_depth = 0;
#endif
        }
        F from_x[T_MR * GATES], from_h[T_MR * GATES];
        for (IDX_T j = 0; j < T_MR * GATES; ++j) from_x[j] = from_h[j] = (F)(0.0f);
        if (rows == 1) {
          multiply_one(from_h, states[0], states_depth, r_panel);
          multiply_one(from_x, inputs[0], depth, w_panel);
        } else if (rows == 2) {
          multiply_two(from_h, states, states_depth, r_panel);
          multiply_two(from_x, inputs, depth, w_panel);
        } else {
          multiply_many(from_h, states, states_depth, r_panel);
          multiply_many(from_x, inputs, depth, w_panel);
        }
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
              STORE_STATES(AT(hidden) + state, LOAD_STATES(states[i] + h));
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
            __global const float *const row =
                AT(gx) + (d * T * B + t * x_t + b * x_b) * GATES * H + h;
            for (IDX_T k = 0; k < GATES; ++k) from_x[i * GATES + k] = LOAD_STATES(row + k * H);
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
          if (states_depth) old = LOAD_STATES(states[i] + h);
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

// Packs weights [D, GATES, H, K] as recurrent_steps reads them: a work-item a block.
__kernel SINGLE_ITEM
void pack_gates(OUT(float, y), IN(float, x), const IDX_T H, const IDX_T K) {
  const IDX_T blocks = (H + VW - 1) / VW;
  const IDX_T at = get_global_id(0);
  const IDX_T d = at / blocks;
  const IDX_T h = at % blocks * VW;
  __global float *to = AT(y) + at * K * WIDTH;
  for (IDX_T k = 0; k < K; ++k)
    for (IDX_T gate = 0; gate < GATES; ++gate)
      for (IDX_T lane = 0; lane < VW; ++lane, ++to)
        *to = h + lane < H ? AT(x)[((d * GATES + gate) * H + h + lane) * K + k] : 0.0f;
}
