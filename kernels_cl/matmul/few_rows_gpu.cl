// y = epilogue(A B) for up to ROWS rows on GPUs: B is read once, from end to end.
// A work-group has LANES x SLICES work-items. Where B's last axis is N (S_B_N_LAST), lanes have T_VW
// columns each, side by side, and slices take K in turns; else lanes go along K, and slices have a
// column each.
// Work-group (x, y, z): columns, ROWS rows, batch. Arguments, defines and B of few bits as in
// gemm_gpu.cl; T_VW is 4 for few bits, whose columns are bytes side by side, where N is whole.
#ifndef T_VW
#define T_VW 1
#endif
#ifndef BODY
#define S_A_K_LAST 1
#define S_B_N_LAST 1
#define INPUTS
#define READS
#define BODY
#define RESULT v0
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
#include "common/operands.clh"

#ifndef T_LANES
#define T_LANES 32
#define T_SLICES 8
#endif
#define LANES T_LANES
#define SLICES T_SLICES
#define ROWS SLICES
#define RUN 4
#define COLUMNS_OF_GROUP (S_B_N_LAST ? LANES * T_VW : SLICES)
#define A_K (S_A_K_LAST ? 1 : a_k)
#define UNROLLED(u, count) _Pragma("unroll") for (int u = 0; u < (count); ++u)
// Rows that there are not are passed over by all work-items alike.
#define EACH_ROW(r) UNROLLED(r, ROWS) if (r < rows)

__kernel __attribute__((reqd_work_group_size(LANES, SLICES, 1)))
void few_rows_gpu(OUT(float, y), IN(float, a), IN(B_T, b) BLOCK_INPUTS, const IDX_T M,
                  const IDX_T N, const IDX_T K, const IDX_T d1, const IDX_T a_s0, const IDX_T a_s1,
                  const IDX_T a_row, const IDX_T a_k, const IDX_T b_s0, const IDX_T b_s1,
                  const IDX_T b_k, const IDX_T b_n INPUTS) {
  __local float parts[ROWS][SLICES][LANES];
  const IDX_T lane = get_local_id(0), slice = get_local_id(1);
  const IDX_T first = (IDX_T)(get_global_id(0) / LANES) * COLUMNS_OF_GROUP;
  const IDX_T m0 = (IDX_T)(get_global_id(1) / SLICES) * ROWS;
  const IDX_T batch = get_global_id(2);
  const IDX_T i0 = batch / d1, i1 = batch % d1;
  const IDX_T rows = i_min(M - m0, ROWS);
  __global const float *const from = AT(a) + i0 * a_s0 + i1 * a_s1 + m0 * a_row;
  const IDX_T own = first + (S_B_N_LAST ? lane * T_VW : slice);
  // Columns past the last one are computed as that one is.
  const IDX_T column = i_min(own, N - T_VW);
  float acc[ROWS][T_VW];
  UNROLLED(r, ROWS) UNROLLED(v, T_VW) acc[r][v] = 0.0f;
#ifdef BITS
  // A block of K has one scale: its levels are added up first.
  for (IDX_T k0 = slice * block_size, block = slice; k0 < K;
       k0 += SLICES * block_size, block += SLICES) {
    float sums[ROWS][T_VW], all[ROWS];
    UNROLLED(r, ROWS) all[r] = 0.0f;
    UNROLLED(r, ROWS) UNROLLED(v, T_VW) sums[r][v] = 0.0f;
    const IDX_T end = i_min(k0 + block_size, K);
    for (IDX_T k = k0; k < end; k += PER) {
      __global const uchar *const line = AT(b) + k / PER * N + column;
      int bytes[T_VW];
      UNROLLED(v, T_VW) bytes[v] = line[v];
      UNROLLED(u, PER) if (k + u < end) {
        EACH_ROW(r) {
          const float x = from[r * a_row + (k + u) * A_K];
          all[r] += x;
          UNROLLED(v, T_VW) sums[r][v] += x * (float)LEVELS(bytes[v], u);
        }
      }
    }
    __global const float *const scale = AT(blocks) + block * 2 * N + column;
    EACH_ROW(r) UNROLLED(v, T_VW) acc[r][v] += (sums[r][v] - scale[N + v] * all[r]) * scale[v];
  }
#else
  __global const B_T *const with = AT(b) + i0 * b_s0 + i1 * b_s1 + column * (S_B_N_LAST ? 1 : b_n);
  // RUN places of K at once. Those past the end read the last one, and count as 0 times 0.
  const IDX_T begin = S_B_N_LAST ? slice * RUN : lane, next = S_B_N_LAST ? 1 : LANES;
  for (IDX_T k0 = begin; k0 < K; k0 += RUN * (S_B_N_LAST ? SLICES : LANES)) {
    float w[RUN];
    UNROLLED(u, RUN) {
      const IDX_T k = k0 + u * next;
      const float v = LOAD_AS(B_STORAGE, with, i_min(k, K - 1) * b_k);
      w[u] = k < K ? v : 0.0f;
    }
    EACH_ROW(r) UNROLLED(u, RUN) {
      const IDX_T k = k0 + u * next;
      const float x = from[r * a_row + i_min(k, K - 1) * A_K];
      acc[r][0] += (k < K ? x : 0.0f) * w[u];
    }
  }
#endif
  // Work-items have an element each: of row `slice` where lanes have columns, else of row `lane`.
  const IDX_T begin_row = S_B_N_LAST ? slice : lane, next_row = S_B_N_LAST ? ROWS : LANES;
  UNROLLED(v, T_VW) {
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLLED(row, ROWS) parts[row][slice][lane] = acc[row][v];
    barrier(CLK_LOCAL_MEM_FENCE);
    const IDX_T n = own + v;
    for (IDX_T r = begin_row; r < rows && n < N; r += next_row) {
      const IDX_T m = m0 + r;
      float sum = 0.0f;
      for (int k = 0; k < (S_B_N_LAST ? SLICES : LANES); ++k)
        sum += S_B_N_LAST ? parts[r][k][lane] : parts[r][slice][k];
      const F v0 = sum;
      READS BODY
      AT(y)[(batch * M + m) * N + n] = RESULT;
    }
  }
}
