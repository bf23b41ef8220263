// y = epilogue(A B) on GPUs for few rows, with one sequential read of B. The two batch axes have
// indices i0 and i1 (below d1); batch = i0 * d1 + i1. Strides are in elements.
//   a  read: float32, element (m, k) at i0 * a_s0 + i1 * a_s1 + m * a_row + k * a_k
//   b  read: B_T, element (k, n) at i0 * b_s0 + i1 * b_s1 + k * b_k + n * b_n; or, if BITS is
//      defined, one low-bit matrix of N rows of `pitch` bytes (common/level_rows.clh)
//   y  written: float32 [batch, M, N]
// One work-group of LANES x SLICES work-items per (block of columns, ROWS rows, batch). With
// S_B_N_LAST the block has LANES columns: lanes have adjacent columns, and slices interleave K.
// Otherwise, and for low-bit B, it has SLICES columns: each slice has one, and its lanes go along K
// (for low-bit B by 32-bit words). Partial sums are added in local memory.
//   T_LANES, T_SLICES  their product is the work-group's size; ROWS is T_SLICES
//   S_A_K_LAST  1: a_k is 1;  S_B_N_LAST  1: b_n is 1 (and b is not low-bit)
//   S_K_WHOLE   1, for low-bit B: K is a multiple of a word's elements, so that rows of A are whole
//               float4s
//   S_A_WIDE, S_B_WIDE  1: the operand's last axis is K, a multiple of 8 elements, 16-byte aligned
//   B_T, B_STORAGE  type and storage of b (common/storage.clh)
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual)
//               applied to each sum, described in matmul/gemm_cpu.cl
#ifndef EPILOGUE_BODY
#define S_A_K_LAST 1
#define S_B_N_LAST 1
#define EPILOGUE_PARAMS
#define EPILOGUE_LOADS
#define EPILOGUE_BODY
#define EPILOGUE_RESULT v0
#endif
#ifndef B_T
#define B_T float
#define B_STORAGE plain
#endif
#ifndef S_K_WHOLE
#define S_K_WHOLE 0
#endif
#ifndef S_A_WIDE
#define S_A_WIDE 0
#define S_B_WIDE 0
#endif
#define VW 1
#include "common/base.clh"
#include "common/level_rows.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/operands.clh"
#include "common/pairs.clh"
#include "common/sub_group.clh"

#ifndef T_LANES
#define T_LANES 32
#define T_SLICES 8
#endif
// With adjacent columns half of the lanes read enough at once; twice the slices share K.
#define LANES (S_B_N_LAST ? T_LANES / 2 : T_LANES)
#define SLICES (S_B_N_LAST ? 2 * T_SLICES : T_SLICES)
#define ROWS T_SLICES
// A word of 2-bit levels needs twice the registers; 6-bit levels have two words.
#if defined(BITS) && (BITS == 2 || HIGH_BITS == 2)
#define RUN 2
#else
#define RUN 4
#endif
#define COLUMNS_OF_GROUP (S_B_N_LAST ? LANES : SLICES)
#define A_K (S_A_K_LAST ? 1 : a_k)
#define UNROLLED(u, count) _Pragma("unroll") for (int u = 0; u < (count); ++u)
// All work-items of a group skip the same missing rows.
#define EACH_ROW(r) UNROLLED(r, ROWS) if (r < rows)

#if S_B_WIDE
// Elements of B per vector of 16 bytes.
#if CAT(IS_, B_STORAGE)
#define WIDTH 8
#define NUMBER(word, i) CAT(float_of_, B_STORAGE)((word)[(i) / 2], (i) % 2)
#else
#define WIDTH 4
#define NUMBER(word, i) as_float((word)[i])
#endif
// Returns the dot product of WIDTH elements of a row of A, `step` apart from `from` on, with w, as
// many elements of a column of B (16 bytes of it, converted to float).
static inline float times_vector(__global const float *from, const IDX_T step, const float *w) {
  float sum = 0.0f;
  UNROLLED(i, WIDTH / 4) {
#if S_A_WIDE
    const float4 x = *(__global const float4 *)(from + 4 * i);
#else
    const float4 x = (float4)(from[4 * i * step], from[(4 * i + 1) * step],
                              from[(4 * i + 2) * step], from[(4 * i + 3) * step]);
#endif
    sum += x.s0 * w[4 * i];
    sum += x.s1 * w[4 * i + 1];
    sum += x.s2 * w[4 * i + 2];
    sum += x.s3 * w[4 * i + 3];
  }
  return sum;
}
#endif

#ifdef BITS
// Returns the dot product of a row of A with low-bit B over the WORD elements of K from k on. w
// has these elements of B, unpacked from a 32-bit word; those of A are `step` apart in the row
// `from`. Elements past K count as 0.
static inline float times_word(__global const float *from, const IDX_T k, const IDX_T K,
                               const IDX_T step, const float *w) {
  float sum = 0.0f;
#if S_K_WHOLE
  UNROLLED(i, FIELDS) {
    const float4 x = *(__global const float4 *)(from + k + 4 * i);
    sum += x.s0 * w[4 * i];
    sum += x.s1 * w[4 * i + 1];
    sum += x.s2 * w[4 * i + 2];
    sum += x.s3 * w[4 * i + 3];
  }
#else
  UNROLLED(i, WORD) if (k + i < K) sum += from[(k + i) * step] * w[i];
#endif
  return sum;
}
#endif

__kernel SUB_GROUP __attribute__((reqd_work_group_size(LANES, SLICES, 1)))
void few_rows_gpu(OUT(float, y), IN(float, a), IN(B_T, b) LEVEL_INPUTS, const IDX_T M,
                  const IDX_T N, const IDX_T K, const IDX_T d1, const IDX_T a_s0, const IDX_T a_s1,
                  const IDX_T a_row, const IDX_T a_k, const IDX_T b_s0, const IDX_T b_s1,
                  const IDX_T b_k, const IDX_T b_n EPILOGUE_PARAMS) {
  __local float parts[ROWS][SLICES][LANES];
  const IDX_T lane = get_local_id(0), slice = get_local_id(1);
  const IDX_T first = (IDX_T)(get_global_id(0) / LANES) * COLUMNS_OF_GROUP;
  const IDX_T m0 = (IDX_T)(get_global_id(1) / SLICES) * ROWS;
  const IDX_T batch = get_global_id(2);
  const IDX_T i0 = batch / d1, i1 = batch % d1;
  const IDX_T rows = i_min(M - m0, ROWS);
  __global const float *const from = AT(a) + i0 * a_s0 + i1 * a_s1 + m0 * a_row;
  const IDX_T n = first + (S_B_N_LAST ? lane : slice);
  // Columns past the last one repeat it.
  const IDX_T column = i_min(n, N - 1);
  float acc[ROWS];
  UNROLLED(r, ROWS) acc[r] = 0.0f;
#ifdef BITS
  // RUN words at once; loads past the end are clamped to the last one.
  __global const uchar *const weights = AT(b) + (size_t)column * pitch;
  for (IDX_T k0 = lane * WORD; k0 < K; k0 += RUN * LANES * WORD) {
    uint words[RUN];
    UNROLLED(u, RUN) {
      words[u] = ((__global const uint *)weights)[i_min(k0 + u * LANES * WORD, K - 1) / WORD];
    }
    UNROLLED(u, RUN) {
      const IDX_T k = k0 + u * LANES * WORD;
      if (k < K) {
        float w[WORD];
        unpack_word(w, words[u], weights, blocks, k / WORD);
        __global const float *x = from;
        EACH_ROW(r) {
          acc[r] += times_word(x, k, K, A_K, w);
          x += a_row;
        }
      }
    }
  }
#elif S_B_WIDE
  __global const B_T *const with = AT(b) + i0 * b_s0 + i1 * b_s1 + column * b_n;
  // RUN vectors at once; loads past the end are clamped to the last one.
  for (IDX_T k0 = lane * WIDTH; k0 < K; k0 += RUN * LANES * WIDTH) {
    uint4 vectors[RUN];
    UNROLLED(u, RUN) {
      vectors[u] = *(__global const uint4 *)(with + i_min(k0 + u * LANES * WIDTH, K - WIDTH));
    }
    UNROLLED(u, RUN) {
      const IDX_T k = k0 + u * LANES * WIDTH;
      if (k < K) {
        float w[WIDTH];
        const uint word[4] = {vectors[u].x, vectors[u].y, vectors[u].z, vectors[u].w};
        UNROLLED(i, WIDTH) w[i] = NUMBER(word, i);
        EACH_ROW(r) acc[r] += times_vector(from + r * a_row + k * A_K, A_K, w);
      }
    }
  }
#else
  __global const B_T *const with = AT(b) + i0 * b_s0 + i1 * b_s1 + column * (S_B_N_LAST ? 1 : b_n);
  // RUN k at once; indices past the end are clamped to the last one, and their products are 0 * 0.
  const IDX_T begin = S_B_N_LAST ? slice * RUN : lane, next = S_B_N_LAST ? 1 : LANES;
  for (IDX_T k0 = begin; k0 < K; k0 += RUN * (S_B_N_LAST ? SLICES : LANES)) {
    float w[RUN];
    UNROLLED(u, RUN) {
      const IDX_T k = k0 + u * next;
      const float v = LOAD_AS(B_STORAGE, with, i_min(k, K - 1) * b_k);
      w[u] = k < K ? v : 0.0f;
    }
#if S_A_WIDE && S_B_N_LAST
    EACH_ROW(r) {
      const float4 x = *(__global const float4 *)(from + r * a_row + k0);
      acc[r] += x.s0 * w[0];
      acc[r] += x.s1 * w[1];
      acc[r] += x.s2 * w[2];
      acc[r] += x.s3 * w[3];
    }
#else
    EACH_ROW(r) UNROLLED(u, RUN) {
      const IDX_T k = k0 + u * next;
      const float x = from[r * a_row + i_min(k, K - 1) * A_K];
      acc[r] += (k < K ? x : 0.0f) * w[u];
    }
#endif
  }
#endif
  EACH_ROW(r) parts[r][slice][lane] = acc[r];
  barrier(CLK_LOCAL_MEM_FENCE);
  // One element per work-item: of row `slice` if lanes have columns, else of row `lane`.
  const IDX_T begin_row = S_B_N_LAST ? slice : lane, next_row = S_B_N_LAST ? SLICES : LANES;
  for (IDX_T r = begin_row; r < rows && n < N; r += next_row) {
    const IDX_T m = m0 + r;
    float sum = 0.0f;
    UNROLLED(k, S_B_N_LAST ? SLICES : LANES)
      sum += S_B_N_LAST ? parts[r][k][lane] : parts[r][slice][k];
    const F v0 = sum;
    EPILOGUE_LOADS EPILOGUE_BODY
    AT(y)[(batch * M + m) * N + n] = EPILOGUE_RESULT;
  }
}
