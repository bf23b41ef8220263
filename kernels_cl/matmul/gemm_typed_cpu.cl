// y = epilogue(A B) for CPU devices, of float64 and of 32- and 64-bit integers. The two batch axes
// have indices i0 and i1 (below d1); batch = i0 * d1 + i1. Strides are in elements.
//   a  read: DATA_T, element (m, k) at i0 * a_s0 + i1 * a_s1 + m * a_row + k
//   b  read: DATA_T [panel][K][T_NV * T_VW], columns padded with zeros to whole panels; matrices at
//      i0 * b_s0 + i1 * b_s1
//   y  written: Y_T [batch, M, N]
// One work-group of one work-item per (stripe of `height` blocks of T_MR rows, panel), in the order
// of common/product_rows.inc. It keeps T_MR rows by T_NV vectors of T_VW columns in registers; the
// epilogue is computed element by element.
//   DATA_T  type of A, B and the sums;  OUT_T  type to which the result is converted before it is
//           stored
//   Y_STORAGE  storage of y (common/storage.clh);  T_MC  blocks per chunk;  T_KU  unrolled steps of
//              k
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual)
//               applied to each sum, described in matmul/gemm_cpu.cl
#ifndef T_MR
#define T_MR 4
#define T_NV 3
#define T_VW 4
#define T_MC 32
#define T_KU 2
#endif
#ifndef EPILOGUE_BODY
#define DATA_T int
#define OUT_T int
#define Y_T int
#define EPILOGUE_PARAMS , IN(int, x1), const IDX_T x1_s0, const IDX_T x1_s1, const IDX_T x1_sm
#define EPILOGUE_LOADS const int v1 = COLUMNS(1, plain);
#define EPILOGUE_BODY const int v2 = i_add(v0, v1);
#define EPILOGUE_RESULT v2
#endif
#ifndef Y_STORAGE
#define Y_STORAGE plain
#endif
#define VW 1
#include "common/base.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/operands.clh"
#include "common/tile.clh"

#define PANEL_WIDTH (T_NV * T_VW)
typedef CAT(DATA_T, T_VW) V;
#define ROW_OF_A(i) \
  __global const DATA_T *const a##i = a_batch + (m0 + i < M ? m0 + i : M - 1) * a_row;
#define ZERO_SUM(i, j) V acc##i##_##j = (V)(0);
#define ZERO_SUMS(i) VECTORS(ZERO_SUM, i)
#define LOAD_B(i, j) const V b##j = panel[j];
#define MULTIPLY_TYPED(i)      \
  {                            \
    const V a_k = (V)(a##i[k]); \
    VECTORS(MULTIPLY, i)       \
  }

__kernel SINGLE_ITEM
void gemm_typed_cpu(OUT(Y_T, y), IN(DATA_T, a), IN(DATA_T, b), const IDX_T M, const IDX_T N,
                    const IDX_T K, const IDX_T height, const IDX_T d1, const IDX_T a_s0,
                    const IDX_T a_s1, const IDX_T a_row, const IDX_T b_s0,
                    const IDX_T b_s1 EPILOGUE_PARAMS) {
  const IDX_T blocks = (M + T_MR - 1) / T_MR;
  const IDX_T stripes = (blocks + height - 1) / height;
  const IDX_T panels = (N + PANEL_WIDTH - 1) / PANEL_WIDTH;
#include "common/product_rows.inc"
  const IDX_T n0 = in_chunk / chunk_stripes * PANEL_WIDTH;
  const IDX_T i0 = batch / d1;
  const IDX_T i1 = batch % d1;
  __global const DATA_T *const a_batch = AT(a) + i0 * a_s0 + i1 * a_s1;
  __global const DATA_T *const b_panel = AT(b) + i0 * b_s0 + i1 * b_s1 + n0 * K;
  const IDX_T columns = i_min(PANEL_WIDTH, N - n0);
  for (IDX_T m0 = first * T_MR; m0 < i_min(end * T_MR, M); m0 += T_MR) {
    __global const V *panel = (__global const V *)b_panel;
    ROWS(ROW_OF_A)
    ROWS(ZERO_SUMS)
#pragma unroll T_KU
    for (IDX_T k = 0; k < K; ++k) {
      VECTORS(LOAD_B, 0)
      ROWS(MULTIPLY_TYPED)
      panel += T_NV;
    }
    V tile[T_MR * T_NV];
    ROWS(KEEP_ROW)
    const IDX_T rows = i_min(T_MR, M - m0);
    for (IDX_T i = 0; i < rows; ++i) {
      const IDX_T m = m0 + i;
      const DATA_T *const sums = (const DATA_T *)(tile + i * T_NV);
      for (IDX_T n = n0; n < n0 + columns; ++n) {
        const DATA_T v0 = sums[n - n0];
        EPILOGUE_LOADS EPILOGUE_BODY
        STORE_AS(Y_STORAGE, AT(y), (batch * M + m) * N + n, (OUT_T)(EPILOGUE_RESULT));
      }
    }
  }
}
