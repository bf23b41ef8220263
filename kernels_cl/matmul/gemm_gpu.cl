// y = epilogue(A B) for GPUs, a tile of it by a work-group (common/group_tile.clh).
// Work-group (x, y, z): tile of columns, tile of rows, batch.
// B may be in few bits (common/level_rows.clh): work-items bring four places of K at a time.
// INPUTS, READS, BODY, RESULT as in gemm_cpu.cl.
#ifndef T_RM
#define T_RM 4
#define T_RN 4
#define T_TK 16
#endif
#ifndef BODY
#define S_A_K_LAST 1
#define S_B_N_LAST 1
#define INPUTS , IN(float, x1), const IDX_T x1_s0, const IDX_T x1_s1, const IDX_T x1_sm
#define READS const F v1 = COLUMNS(1, plain);
#define BODY const F v2 = v0 + v1;
#define RESULT v2
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
// What is read past the end of K meets zeros of A.
#define FOURS ((SHARE(TILE_N) + 3) / 4)
#define FOUR_K(e) ((e) % (T_TK / 4) * 4)
#define FOUR_N(e) ((e) / (T_TK / 4))
#define B_NEXT float4 b_next[FOURS]
#define FETCH_B                                                                          \
  EACH_ELEMENT(u, FOURS) {                                                               \
    const IDX_T e = item + u * ITEMS, k = k0 + FOUR_K(e);                                \
    __global const uchar *const from = AT(b) + (size_t)i_min(n0 + FOUR_N(e), N - 1) * pitch; \
    b_next[u] = level_four(from, blocks, i_min(k, (K - 1) / 4 * 4));                     \
  }
#define PUT_B                                                                            \
  EACH_ELEMENT(u, FOURS) {                                                               \
    const IDX_T e = item + u * ITEMS, n = FOUR_N(e);                                     \
    if (n < TILE_N) {                                                                    \
      b_tile[FOUR_K(e)][n] = b_next[u].s0;                                               \
      b_tile[FOUR_K(e) + 1][n] = b_next[u].s1;                                           \
      b_tile[FOUR_K(e) + 2][n] = b_next[u].s2;                                           \
      b_tile[FOUR_K(e) + 3][n] = b_next[u].s3;                                           \
    }                                                                                    \
  }
#else
#define FETCH_B                                                                          \
  EACH_ELEMENT(u, SHARE(TILE_N)) {                                                       \
    const IDX_T e = item + u * ITEMS, k = k0 + SLICE_K(e, TILE_N, !S_B_N_LAST);          \
    const IDX_T nn = i_min(n0 + SLICE_AT(e, TILE_N, !S_B_N_LAST), N - 1);                \
    const float v = ELEMENT_B(i_min(k, K - 1), nn);                                      \
    b_next[u] = k < K ? v : 0.0f;                                                        \
  }
#endif
#include "common/group_tile.clh"

#define ELEMENT_B(k, n) LOAD_AS(B_STORAGE, AT(b), at_b + (k) * b_k + (n) * B_N)
#define A_K (S_A_K_LAST ? 1 : a_k)
#define B_N (S_B_N_LAST ? 1 : b_n)

// Reads past the edges take the last element instead, which no branch is needed for.
#define FETCH(slice)                                                                     \
  const IDX_T k0 = (slice) * T_TK;                                                       \
  EACH_ELEMENT(u, SHARE(TILE_M)) {                                                       \
    const IDX_T e = item + u * ITEMS, k = k0 + SLICE_K(e, TILE_M, S_A_K_LAST);           \
    const IDX_T mm = i_min(m0 + SLICE_AT(e, TILE_M, S_A_K_LAST), M - 1);                 \
    const float v = AT(a)[at_a + mm * a_row + i_min(k, K - 1) * A_K];                    \
    a_next[u] = k < K ? v : 0.0f;                                                        \
  }                                                                                      \
  FETCH_B
#define PREPARE(slice)
#define COLUMNS_OF_ALL N
#define COLUMN(j, at) const IDX_T n = at;
#define Y_AT ((batch * M + m) * N + n)

__kernel SUB_GROUP __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void gemm_gpu(OUT(float, y), IN(float, a), IN(B_T, b) LEVEL_INPUTS, const IDX_T M,
              const IDX_T N, const IDX_T K, const IDX_T d1, const IDX_T a_s0, const IDX_T a_s1, const IDX_T a_row,
              const IDX_T a_k, const IDX_T b_s0, const IDX_T b_s1, const IDX_T b_k,
              const IDX_T b_n INPUTS) {
  GROUP_TILE
  const IDX_T batch = get_global_id(2);
  const IDX_T i0 = batch / d1;
  const IDX_T i1 = batch % d1;
  const IDX_T at_a = i0 * a_s0 + i1 * a_s1;
  const IDX_T at_b = i0 * b_s0 + i1 * b_s1;
  const IDX_T first = 0, end = (K + T_TK - 1) / T_TK;
#include "common/sum_slices.inc"
#include "common/store_tile.inc"
}
