// y = epilogue(A B), float32, for few rows of A on CPU devices: the time is that of one read of B
// from memory (gemm_cpu.cl is for more rows). One matrix, without batches.
//   a  read: float32, M rows of K elements, a_row elements apart
//   b  read: B_T [panel][K][T_NV * T_VW], columns padded with zeros to whole panels
//   y  written: float32 [M][N]
// One work-group of one work-item per `columns` columns of y, a multiple of the panel's width: it
// computes all M rows of them.
//   T_MR        maximum rows per register tile, 4 or 8, as registers for their sums permit
//   T_NV, T_VW  vectors per panel, and lanes per vector
//   B_T, B_STORAGE  type and storage of B's elements: plain, half or bfloat16 (common/widen.clh)
//   FUSE_RMS_PROLOGUE  1: rows of A are first RMS-normalized (epsilon) and multiplied by a_scale
//                      [K], into the work-group's [M][K] of the scratch `rows`
//   SECOND_GEMM  if defined, the epilogue also reads `second`, the tile of A times b2, which is
//                packed as b
//   S_N_WHOLE   1: N is a multiple of T_VW for all shapes, so that no vector is partial
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual)
//               applied to each sum, described in matmul/gemm_cpu.cl
#ifndef T_NV
#define T_MR 4
#define T_NV 3
#define T_VW 8
#endif
#ifndef FUSE_RMS_PROLOGUE
#define FUSE_RMS_PROLOGUE 0
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/repeat.clh"
#include "common/finish.clh"
#include "common/widen.clh"
#include "common/mean_square.clh"
#ifndef B_T
#define B_T float
#define B_STORAGE plain
#endif
#ifdef SECOND_GEMM
#define SECOND_GEMM_B , IN(B_T, b2)
#else
#define SECOND_GEMM_B
#endif
#if FUSE_RMS_PROLOGUE
#define NORM_ROWS , IN(float, a_scale), const float epsilon, OUT(float, rows)
#else
#define NORM_ROWS
#endif
#define PANEL_WIDTH (T_NV * T_VW)
#define LINES_AHEAD 32
#define VECTORS(X, i) CAT(VECTORS_, T_NV)(X, i)
#define LOAD_B(i, j) const F b##j = LOAD_WIDE(B_STORAGE, b + j * T_VW);
#define AHEAD_B(i, j) PREFETCH(b + LINES_AHEAD * PANEL_WIDTH + j * T_VW);
#define ZERO(i, j) F acc##i##_##j = (F)(0.0f);
#define ZERO_ROW(i) VECTORS(ZERO, i)
#define MULTIPLY(i, j) acc##i##_##j = a_k * b##j + acc##i##_##j;
#define KEEP(i, j) tile[i * T_NV + j] = acc##i##_##j;
#define KEEP_ROW(i) VECTORS(KEEP, i)
#define KEEP_SUM(i, j) tile[j] = acc0_##j + acc1_##j;
// Adds the products of one k of a single row. Even and odd k have separate sums (i), since each FMA
// of a chain waits for the one before.
#define ONE_STEP(i, at)              \
  {                                  \
    const F a_k = (F)(a[at]);        \
    VECTORS(LOAD_B, 0)               \
    VECTORS(AHEAD_B, 0)              \
    VECTORS(MULTIPLY, i)             \
    b += PANEL_WIDTH;                \
  }
#define ROW_STEP(i)                        \
  {                                        \
    const F a_k = (F)(a[i * a_row + k]);   \
    VECTORS(MULTIPLY, i)                   \
  }

static inline void one_row(F *tile, __global const float *a, __global const B_T *b, const IDX_T K) {
  ZERO_ROW(0) ZERO_ROW(1)
  IDX_T k = 0;
  for (; k + 2 <= K; k += 2) {
    ONE_STEP(0, k)
    ONE_STEP(1, k + 1)
  }
  if (k < K) ONE_STEP(0, k)
  VECTORS(KEEP_SUM, 0)
}

#if T_MR == 8
// Rows past `count` repeat the last one: a code path for fewer rows would have to wait for the
// panel, too.
#define ROW_OF(i) __global const float *const row##i = a + i_min(i, count - 1) * a_row;
#define ROW_STEP_OF(i)               \
  {                                  \
    const F a_k = (F)(row##i[k]);    \
    VECTORS(MULTIPLY, i)             \
  }
static inline void eight_rows(F *tile, __global const float *a, const IDX_T a_row,
                              __global const B_T *b, const IDX_T K, const IDX_T count) {
  ROWS_8(ROW_OF)
  ROWS_8(ZERO_ROW)
  for (IDX_T k = 0; k < K; ++k, b += PANEL_WIDTH) {
    VECTORS(LOAD_B, 0)
    VECTORS(AHEAD_B, 0)
    ROWS_8(ROW_STEP_OF)
  }
  ROWS_8(KEEP_ROW)
}
#define MULTIPLY_MORE(to, b) \
  else if (count > 4)        \
    eight_rows(to, x, step, b, K, count);
#else
#define MULTIPLY_MORE(to, b)
#endif

static inline void four_rows(F *tile, __global const float *a, const IDX_T a_row,
                             __global const B_T *b, const IDX_T K) {
  ROWS_4(ZERO_ROW)
  for (IDX_T k = 0; k < K; ++k, b += PANEL_WIDTH) {
    VECTORS(LOAD_B, 0)
    VECTORS(AHEAD_B, 0)
    ROWS_4(ROW_STEP)
  }
  ROWS_4(KEEP_ROW)
}

__kernel SINGLE_ITEM
void few_rows_cpu(OUT(float, y), IN(float, a), IN(B_T, b), const IDX_T M, const IDX_T N,
                  const IDX_T K, const IDX_T columns, const IDX_T d1, const IDX_T a_s0,
                  const IDX_T a_s1, const IDX_T a_row EPILOGUE_PARAMS NORM_ROWS SECOND_GEMM_B) {
  const IDX_T n_first = get_group_id(0) * columns, n_end = i_min(n_first + columns, N);
  const IDX_T i0 = 0, i1 = 0;
#if FUSE_RMS_PROLOGUE
  __global float *const from = AT(rows) + get_group_id(0) * M * K;
  const IDX_T step = K;
  for (IDX_T m = 0; m < M; ++m) {
    __global const float *const x = AT(a) + m * a_row;
    const float factor = 1.0f / sqrt(mean_square(x, K) + epsilon);
    for (IDX_T k = 0; k < K; ++k) from[m * K + k] = x[k] * factor * AT(a_scale)[k];
  }
#else
  __global const float *const from = AT(a);
  const IDX_T step = a_row;
#endif
  for (IDX_T n0 = n_first; n0 < n_end; n0 += PANEL_WIDTH) {
    __global const B_T *const panel = AT(b) + n0 * K;
    for (IDX_T first = 0, count; first < M; first += count) {
      F tile[T_MR * T_NV];
      __global const float *const x = from + first * step;
      const IDX_T left = M - first;
      count = left < 4 ? 1 : T_MR > 4 && left > 4 ? i_min(left, T_MR) : 4;
#define MULTIPLY_ROWS(to, b)               \
  if (count == 1)                          \
    one_row(to, x, b, K);                  \
  MULTIPLY_MORE(to, b)                     \
  else                                     \
    four_rows(to, x, step, b, K);
      MULTIPLY_ROWS(tile, panel)
#ifdef SECOND_GEMM
      F second[T_MR * T_NV];
      MULTIPLY_ROWS(second, AT(b2) + n0 * K)
#endif
      for (IDX_T i = 0; i < count; ++i) {
        const IDX_T m = first + i;
        __global float *const y_row = AT(y) + m * N;
        for (int j = 0; j < T_NV; ++j) FINISH(i, j)
      }
    }
  }
}
