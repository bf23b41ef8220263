// y = epilogue(A B) for GPUs: a work-group of 16 x 16 computes a tile of 16 T_RM x 16 T_RN
// elements from slices of A and B, T_TK deep, in local memory; T_RM x T_RN elements per work-item.
// Work-group (x, y, z): tile of columns, tile of rows, batch.
// B may be in few bits (common/blocks.clh).
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
#include "common/blocks.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"

#define SIDE 16
#define ITEMS (SIDE * SIDE)
#define TILE_M (SIDE * T_RM)
#define TILE_N (SIDE * T_RN)
#ifdef BITS
#define ELEMENT_B(k, n) block_element(AT(b), AT(blocks), k, n, N, block_size)
#else
#define ELEMENT_B(k, n) LOAD_AS(B_STORAGE, AT(b), at_b + (k) * b_k + (n) * b_n)
#endif
#define AT_OPERAND(k, at) (i0 * x##k##_s0 + i1 * x##k##_s1 + m * x##k##_sm + (at))
#define COLUMNS(k, storage) LOAD_AS(storage, AT(x##k), AT_OPERAND(k, n))
#define ROW(k, storage) LOAD_AS(storage, AT(x##k), AT_OPERAND(k, 0))

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void gemm_gpu(OUT(float, y), IN(float, a), IN(B_T, b) BLOCK_INPUTS, const IDX_T M,
              const IDX_T N, const IDX_T K, const IDX_T d1, const IDX_T a_s0, const IDX_T a_s1, const IDX_T a_row,
              const IDX_T a_k, const IDX_T b_s0, const IDX_T b_s1, const IDX_T b_k,
              const IDX_T b_n INPUTS) {
  // One element more per row: the work-items that store a column of a tile meet different banks.
  __local float a_tile[T_TK][TILE_M + 1];
  __local float b_tile[T_TK][TILE_N + 1];
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
  float acc[T_RM][T_RN];
#pragma unroll
  for (int i = 0; i < T_RM; ++i) {
#pragma unroll
    for (int j = 0; j < T_RN; ++j) acc[i][j] = 0.0f;
  }
  for (IDX_T k0 = 0; k0 < K; k0 += T_TK) {
    for (IDX_T e = item; e < T_TK * TILE_M; e += ITEMS) {
      const IDX_T k = S_A_K_LAST ? e % T_TK : e / TILE_M;
      const IDX_T i = S_A_K_LAST ? e / T_TK : e % TILE_M;
      const bool inside = k0 + k < K && m0 + i < M;
      a_tile[k][i] = inside ? AT(a)[at_a + (m0 + i) * a_row + (k0 + k) * a_k] : 0.0f;
    }
    for (IDX_T e = item; e < T_TK * TILE_N; e += ITEMS) {
      const IDX_T k = S_B_N_LAST ? e / TILE_N : e % T_TK;
      const IDX_T j = S_B_N_LAST ? e % TILE_N : e / T_TK;
      const bool inside = k0 + k < K && n0 + j < N;
      b_tile[k][j] = inside ? ELEMENT_B(k0 + k, n0 + j) : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int k = 0; k < T_TK; ++k) {
      float a_k_[T_RM], b_k_[T_RN];
#pragma unroll
      for (int i = 0; i < T_RM; ++i) a_k_[i] = a_tile[k][row + i * SIDE];
#pragma unroll
      for (int j = 0; j < T_RN; ++j) b_k_[j] = b_tile[k][column + j * SIDE];
#pragma unroll
      for (int i = 0; i < T_RM; ++i) {
#pragma unroll
        for (int j = 0; j < T_RN; ++j) acc[i][j] += a_k_[i] * b_k_[j];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#pragma unroll
  for (int i = 0; i < T_RM; ++i) {
    const IDX_T m = m0 + row + i * SIDE;
#pragma unroll
    for (int j = 0; j < T_RN; ++j) {
      const IDX_T n = n0 + column + j * SIDE;
      if (m < M && n < N) {
        const F v0 = acc[i][j];
        READS BODY
        AT(y)[(batch * M + m) * N + n] = RESULT;
      }
    }
  }
}
