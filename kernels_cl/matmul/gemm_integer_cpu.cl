// y = A B of integers from -255 to 255, exact in int32, for CPU devices. The two batch axes have
// indices i0 and i1 (below d1); batch = i0 * d1 + i1. Strides are in elements.
//   a  read: float32 (of integral values), element (m, k) at i0 * a_s0 + i1 * a_s1 + m * a_row + k
//   b  read: B_T (char or uchar) [panel][K][T_NV * T_VW], columns padded with zeros to whole
//      panels; matrices at i0 * b_s0 + i1 * b_s1
//   y  written: int32 [batch, M, N]
// Elements are multiplied as float32, whose multiply-adds CPUs compute as fast as any: sums of
// CHUNK products stay below 2^24, and are then added to int32 sums. A work-group of one work-item
// computes a register tile of T_MR rows by one panel.
#ifndef T_MR
#define T_MR 4
#define T_NV 3
#define T_VW 8
#endif
#ifndef B_T
#define B_T char
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/tile.clh"
#include "common/widen.clh"

#define CHUNK 256
typedef CAT(B_T, T_VW) __attribute__((aligned(1))) B_VECTOR;
typedef CAT(int, T_VW) SUMS;

#define LOAD_B(i, j) const F b##j = WIDE_AS(float, panel[j]);
#define ADD_SUMS(i, j) tile[i * T_NV + j] += WIDE_AS(int, acc##i##_##j);
#define ADD_SUMS_ROW(i) VECTORS(ADD_SUMS, i)

__kernel SINGLE_ITEM
void gemm_integer_cpu(OUT(int, y), IN(float, a), IN(B_T, b), const IDX_T M, const IDX_T N,
                      const IDX_T K, const IDX_T d1, const IDX_T a_s0, const IDX_T a_s1,
                      const IDX_T a_row, const IDX_T b_s0, const IDX_T b_s1) {
  const IDX_T blocks = (M + T_MR - 1) / T_MR;
  const IDX_T panels = (N + T_NV * T_VW - 1) / (T_NV * T_VW);
  const IDX_T batch = (IDX_T)get_global_id(0) / (blocks * panels);
  const IDX_T at = (IDX_T)get_global_id(0) % (blocks * panels);
  const IDX_T n0 = at / blocks * (T_NV * T_VW);
  const IDX_T m0 = at % blocks * T_MR;
  const IDX_T i0 = batch / d1;
  const IDX_T i1 = batch % d1;
  __global const float *const a_batch = AT(a) + i0 * a_s0 + i1 * a_s1;
  __global const B_VECTOR *panel =
      (__global const B_VECTOR *)(AT(b) + i0 * b_s0 + i1 * b_s1 + n0 * K);
  ROWS(ROW_POINTER)
  SUMS tile[T_MR * T_NV];
  for (int t = 0; t < T_MR * T_NV; ++t) tile[t] = (SUMS)(0);
  for (IDX_T start = 0; start < K; start += CHUNK) {
    const IDX_T end = i_min(start + CHUNK, K);
    ROWS(ZERO_ROW)
    for (IDX_T k = start; k < end; ++k) {
      VECTORS(LOAD_B, 0)
      ROWS(MULTIPLY_ROW)
      panel += T_NV;
    }
    ROWS(ADD_SUMS_ROW)
  }
  const IDX_T rows = i_min(T_MR, M - m0);
  const IDX_T columns = i_min(T_NV * T_VW, N - n0);
  for (IDX_T i = 0; i < rows; ++i) {
    __global int *const y_row = AT(y) + (batch * M + m0 + i) * N + n0;
    const int *const sums = (const int *)(tile + i * T_NV);
    for (IDX_T n = 0; n < columns; ++n) y_row[n] = sums[n];
  }
}
