// y = epilogue(A B) for GPUs: a work-group of 16 x 16 computes a tile of 16 T_RM x 16 T_RN
// elements from slices of A and B, T_TK deep, in local memory; T_RM x T_RN elements per work-item,
// whose rows and columns come in runs of up to 4, each one read of local memory. The next slice is on
// its way into registers meanwhile.
// Work-group (x, y, z): tile of columns, tile of rows, batch.
// B may be in few bits (common/level_rows.clh): work-items bring four places of K at a time.
//   S_A_K_LAST  A's last axis is K (else M: transposed);  S_B_N_LAST  B's last axis is N (else K)
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

#define SIDE 16
#define ITEMS (SIDE * SIDE)
#define TILE_M (SIDE * T_RM)
#define TILE_N (SIDE * T_RN)
#define ELEMENT_B(k, n) LOAD_AS(B_STORAGE, AT(b), at_b + (k) * b_k + (n) * B_N)
#define A_K (S_A_K_LAST ? 1 : a_k)
#define B_N (S_B_N_LAST ? 1 : b_n)

// Element `at` of a work-item's T_RM rows, or T_RN columns, lies here in the tile.
#define RUN(count) ((count) % 4 == 0 ? 4 : (count) % 2 == 0 ? 2 : 1)
#define PLACE(at, own, count) (((at) / RUN(count) * SIDE + (own)) * RUN(count) + (at) % RUN(count))
#define EACH_ELEMENT(u, depth) _Pragma("unroll") for (int u = 0; u < (depth); ++u)
// The elements of a slice that each work-item brings, of a tile with `side` rows or columns. The last
// ones of some are past its end.
#define SHARE(side) ((T_TK * (side) + ITEMS - 1) / ITEMS)
#define IN_SLICE(e, side) (SHARE(side) * ITEMS == T_TK * (side) || (e) < T_TK * (side))
#define SLICE_K(e, side, k_last) ((k_last) ? (e) % T_TK : (e) / (side))
#define SLICE_AT(e, side, k_last) ((k_last) ? (e) / T_TK : (e) % (side))
// Reads past the edges take the last element instead, which no branch is needed for.
#define FETCH(k0)                                                                        \
  EACH_ELEMENT(u, SHARE(TILE_M)) {                                                       \
    const IDX_T e = item + u * ITEMS, k = (k0) + SLICE_K(e, TILE_M, S_A_K_LAST);         \
    const IDX_T mm = i_min(m0 + SLICE_AT(e, TILE_M, S_A_K_LAST), M - 1);                 \
    const float v = AT(a)[at_a + mm * a_row + i_min(k, K - 1) * A_K];                    \
    a_next[u] = k < K ? v : 0.0f;                                                        \
  }                                                                                      \
  FETCH_B(k0)
#define PUT(tile, next, side, k_last)                                                    \
  EACH_ELEMENT(u, SHARE(side)) {                                                         \
    const IDX_T e = item + u * ITEMS;                                                    \
    if (IN_SLICE(e, side)) tile[SLICE_K(e, side, k_last)][SLICE_AT(e, side, k_last)] = next[u]; \
  }
#ifdef BITS
// What is read past the end of K meets zeros of A.
#define FOURS ((SHARE(TILE_N) + 3) / 4)
#define B_NEXT float4 b_next[FOURS]
#define FOUR_K(e) ((e) % (T_TK / 4) * 4)
#define FOUR_N(e) ((e) / (T_TK / 4))
#define FETCH_B(k0)                                                                      \
  EACH_ELEMENT(u, FOURS) {                                                               \
    const IDX_T e = item + u * ITEMS, k = (k0) + FOUR_K(e);                              \
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
#define B_NEXT float b_next[SHARE(TILE_N)]
#define FETCH_B(k0)                                                                      \
  EACH_ELEMENT(u, SHARE(TILE_N)) {                                                       \
    const IDX_T e = item + u * ITEMS, k = (k0) + SLICE_K(e, TILE_N, !S_B_N_LAST);        \
    const IDX_T nn = i_min(n0 + SLICE_AT(e, TILE_N, !S_B_N_LAST), N - 1);                \
    const float v = ELEMENT_B(i_min(k, K - 1), nn);                                      \
    b_next[u] = k < K ? v : 0.0f;                                                        \
  }
#define PUT_B PUT(b_tile, b_next, TILE_N, !S_B_N_LAST)
#endif

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void gemm_gpu(OUT(float, y), IN(float, a), IN(B_T, b) LEVEL_INPUTS, const IDX_T M,
              const IDX_T N, const IDX_T K, const IDX_T d1, const IDX_T a_s0, const IDX_T a_s1, const IDX_T a_row,
              const IDX_T a_k, const IDX_T b_s0, const IDX_T b_s1, const IDX_T b_k,
              const IDX_T b_n INPUTS) {
  // Four elements more per row: the work-items that store a column of a tile meet different banks.
  __local __attribute__((aligned(16))) float a_tile[T_TK][TILE_M + 4];
  __local __attribute__((aligned(16))) float b_tile[T_TK][TILE_N + 4];
  const IDX_T column = get_local_id(0);
  const IDX_T row = get_local_id(1);
  const IDX_T item = row * SIDE + column;
  // The group by its work-items: a launch may be a piece of one, at an offset.
  const IDX_T n0 = (IDX_T)(get_global_id(0) / SIDE) * TILE_N;
  const IDX_T m0 = (IDX_T)(get_global_id(1) / SIDE) * TILE_M;
  const IDX_T batch = get_global_id(2);
  const IDX_T i0 = batch / d1;
  const IDX_T i1 = batch % d1;
  const IDX_T at_a = i0 * a_s0 + i1 * a_s1;
  const IDX_T at_b = i0 * b_s0 + i1 * b_s1;
  float acc[T_RM][T_RN], a_next[SHARE(TILE_M)];
  B_NEXT;
  EACH_ELEMENT(i, T_RM) EACH_ELEMENT(j, T_RN) acc[i][j] = 0.0f;
  if (K > 0) {
    FETCH(0)
  }
  for (IDX_T k0 = 0; k0 < K; k0 += T_TK) {
    PUT(a_tile, a_next, TILE_M, S_A_K_LAST)
    PUT_B
    barrier(CLK_LOCAL_MEM_FENCE);
    if (k0 + T_TK < K) {
      FETCH(k0 + T_TK)
    }
    EACH_ELEMENT(k, T_TK) {
      float a_k_[T_RM], b_k_[T_RN];
      EACH_ELEMENT(i, T_RM) a_k_[i] = a_tile[k][PLACE(i, row, T_RM)];
      EACH_ELEMENT(j, T_RN) b_k_[j] = b_tile[k][PLACE(j, column, T_RN)];
      EACH_ELEMENT(i, T_RM) EACH_ELEMENT(j, T_RN) acc[i][j] += a_k_[i] * b_k_[j];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  EACH_ELEMENT(i, T_RM) {
    const IDX_T m = m0 + PLACE(i, row, T_RM);
    EACH_ELEMENT(j, T_RN) {
      const IDX_T n = n0 + PLACE(j, column, T_RN);
      if (m < M && n < N) {
        const F v0 = acc[i][j];
        READS BODY
        AT(y)[(batch * M + m) * N + n] = RESULT;
      }
    }
  }
}
