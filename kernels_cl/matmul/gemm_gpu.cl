// y = epilogue(A B), float32, for GPUs, one tile of y per work-group (common/group_tile.clh). The
// two batch axes have indices i0 and i1 (below d1); batch = i0 * d1 + i1. Strides are in elements.
//   a  read: float32, element (m, k) at i0 * a_s0 + i1 * a_s1 + m * a_row + k * a_k
//   b  read: B_T, element (k, n) at i0 * b_s0 + i1 * b_s1 + k * b_k + n * b_n; or, if BITS is
//      defined, one low-bit matrix of N rows (common/level_rows.clh), of which work-items load four
//      k at a time
//   y  written: float32 [batch, M, N]
// One work-group of T_SIDE x T_SIDE work-items per (tile of TILE_N columns, tile of TILE_M rows,
// batch).
//   S_A_K_LAST  1: a_k is 1;  S_B_N_LAST  1: b_n is 1
//   T_RM, T_RN  rows and columns of y per work-item;  T_TK  depth along K of a slice in local
//               memory
//   B_T, B_STORAGE  type and storage of b (common/storage.clh)
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual)
//               applied to each sum, described in matmul/gemm_cpu.cl
#ifndef T_RM
#define T_RM 4
#define T_RN 4
#define T_TK 16
#endif
#ifndef EPILOGUE_BODY
#define S_A_K_LAST 1
#define S_B_N_LAST 1
#define EPILOGUE_PARAMS , IN(float, x1), const IDX_T x1_s0, const IDX_T x1_s1, const IDX_T x1_sm
#define EPILOGUE_LOADS const F v1 = COLUMNS(1, plain);
#define EPILOGUE_BODY const F v2 = v0 + v1;
#define EPILOGUE_RESULT v2
#endif
#ifndef B_T
#define B_T float
#define B_STORAGE plain
#endif
#define VW 1
#include "common/base.clh"
#include "common/level_rows.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/operands.clh"
#ifdef BITS
// Low-bit B: elements past the end of K are loaded, and multiplied by zeros of A.
#define FOURS ((SHARE(TILE_N) + 3) / 4)
#define FOUR_K(u) (REST(u, T_TK / 4) * 4)
#define FOUR_N(u) QUOTIENT(u, T_TK / 4)
#define B_NEXT float4 b_next[FOURS]
#define FETCH_B(at_k, is_real)                                                           \
  EACH_ELEMENT(u, FOURS) {                                                               \
    const IDX_T k = FOUR_K(u);                                                           \
    __global const uchar *const from = AT(b) + (size_t)i_min(n0 + FOUR_N(u), N - 1) * pitch; \
    b_next[u] = level_four(from, blocks, k0 + (at_k) / 4 * 4);                           \
  }
#define PUT_B                                                                            \
  EACH_ELEMENT(u, FOURS) {                                                               \
    const IDX_T n = FOUR_N(u);                                                           \
    if (n < TILE_N) {                                                                    \
      b_tile[FOUR_K(u)][n] = b_next[u].s0;                                               \
      b_tile[FOUR_K(u) + 1][n] = b_next[u].s1;                                           \
      b_tile[FOUR_K(u) + 2][n] = b_next[u].s2;                                           \
      b_tile[FOUR_K(u) + 3][n] = b_next[u].s3;                                           \
    }                                                                                    \
  }
#else
#define FETCH_B(at_k, is_real)                                                           \
  __global const B_T *const from_b = AT(b) + at_b + k0 * b_k;                            \
  EACH_ELEMENT(u, SHARE(TILE_N)) {                                                       \
    const IDX_T k = SLICE_K(u, TILE_N, !S_B_N_LAST);                                     \
    const IDX_T nn = i_min(n0 + SLICE_AT(u, TILE_N, !S_B_N_LAST), N - 1);                \
    const float v = LOAD_AS(B_STORAGE, from_b, (at_k) * b_k + nn * B_N);                 \
    b_next[u] = (is_real) ? v : 0.0f;                                                    \
  }
#endif
#include "common/group_tile.clh"

#define A_K (S_A_K_LAST ? 1 : a_k)
#define B_N (S_B_N_LAST ? 1 : b_n)

// Reads past the edges are clamped to the last element, which needs no branch.
#define FETCH_SLICE(slice, at_k, is_real)                                                \
  const IDX_T k0 = (slice) * T_TK;                                                       \
  __global const float *const from_a = AT(a) + at_a + k0 * A_K;                          \
  EACH_ELEMENT(u, SHARE(TILE_M)) {                                                       \
    const IDX_T k = SLICE_K(u, TILE_M, S_A_K_LAST);                                      \
    const IDX_T mm = i_min(m0 + SLICE_AT(u, TILE_M, S_A_K_LAST), M - 1);                 \
    const float v = from_a[mm * a_row + (at_k) * A_K];                                   \
    a_next[u] = (is_real) ? v : 0.0f;                                                    \
  }                                                                                      \
  FETCH_B(at_k, is_real)
// The last slice, which may be partial, is multiplied first, then the whole slices in order, so
// that the loop needs no bounds checks of K: compilers then hoist the loads of the next slice above
// the products. The loads of the last iteration are not used: they repeat the last whole slice, or,
// if there is only one slice, its first k.
#define FETCH_FIRST \
  if (end > 0) {    \
    FETCH_SLICE(end - 1, i_min(k, K - 1 - k0), k < K - k0) \
  }
#define FETCH(step) FETCH_SLICE(i_max(i_min(step, end - 1) - 1, 0), k * has_whole, true)
#define COLUMNS_OF_ALL N
#define COLUMN(j, at) const IDX_T n = at;
#define Y_AT ((batch * M + m) * N + n)

__kernel SUB_GROUP __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void gemm_gpu(OUT(float, y), IN(float, a), IN(B_T, b) LEVEL_INPUTS, const IDX_T M,
              const IDX_T N, const IDX_T K, const IDX_T d1, const IDX_T a_s0, const IDX_T a_s1, const IDX_T a_row,
              const IDX_T a_k, const IDX_T b_s0, const IDX_T b_s1, const IDX_T b_k,
              const IDX_T b_n EPILOGUE_PARAMS) {
  GROUP_TILE
  const IDX_T batch = get_global_id(2);
  const IDX_T i0 = batch / d1;
  const IDX_T i1 = batch % d1;
  const IDX_T at_a = i0 * a_s0 + i1 * a_s1;
  const IDX_T at_b = i0 * b_s0 + i1 * b_s1;
  const IDX_T first = 0, end = (K + T_TK - 1) / T_TK, has_whole = end > 1;
#include "common/sum_slices.inc"
#include "common/store_tile.inc"
}
