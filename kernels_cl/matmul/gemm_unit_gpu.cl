// y = epilogue(A B) by a GPU's matrix unit, such as tensor cores (common/gpu_unit.clh). The two
// batch axes have indices i0 and i1 (below d1); batch = i0 * d1 + i1. Strides are in elements.
//   a  read: A_T, element (m, k) at i0 * a_s0 + i1 * a_s1 + m * a_row + k * a_k
//   b  read: B_T, element (k, n) at i0 * b_s0 + i1 * b_s1 + k * b_k + n * b_n
//   y  written: Y_T [batch, M, N]
// One work-group of ITEMS work-items per (tile of T_N columns, tile of T_M rows, batch). It stages
// slices of A and B, MMA_K deep, in local memory; the next slice is loaded into registers
// meanwhile. Each of its WAVES waves computes a rectangle of the tile.
// Operands with more bits than the unit's are split into TERMS_A and TERMS_B bfloat16 terms, whose
// sum is the element; products of terms below 2^-22 of the whole are omitted. Terms are multiplied
// per slice, the largest product last, and summed outside of the unit, which may truncate instead
// of rounding (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022).
// Infinite and NaN sums are recomputed by multiply-adds.
//   T_ITEMS, T_SPLIT_ITEMS  work-items per group, without and with terms (TERMS_A > 1)
//   S_A_K_LAST, S_B_N_LAST  1: a_k is 1; 1: b_n is 1
//   S_A_WIDE, S_B_WIDE      1: the operand's last axis is a multiple of 8 elements, and aligned to
//                      8 elements
//   A_STORAGE, B_STORAGE, Y_STORAGE  storages of A_T, B_T and Y_T (common/storage.clh)
//   OUT_T                   type to which the result is converted before it is stored
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual)
//               applied to each sum, described in matmul/gemm_cpu.cl
#ifndef T_M
#define T_M 64
#define T_N 64
#define T_ITEMS 128
#define T_SPLIT_ITEMS 128
#endif
#ifndef TERMS_A
#define TERMS_A 1
#define TERMS_B 1
#define S_A_K_LAST 1
#define S_B_N_LAST 1
#define S_A_WIDE 0
#define S_B_WIDE 0
#endif
#ifndef EPILOGUE_BODY
#define EPILOGUE_BODY const F v2 = v0 * v1;
#define EPILOGUE_RESULT v2
#define EPILOGUE_LOADS const F v1 = ROW(1, plain);
#define EPILOGUE_PARAMS , IN(float, x1), const IDX_T x1_s0, const IDX_T x1_s1, const IDX_T x1_sm
#endif
#ifndef A_T
#define A_T half
#define A_STORAGE half
#define B_T half
#define B_STORAGE half
#define Y_T half
#define Y_STORAGE half
#define OUT_T float
#endif
#define VW 1
#include "common/base.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/operands.clh"
#include "common/gpu_unit.clh"
#include "common/pairs.clh"

#define ITEMS (TERMS_A == 1 ? T_ITEMS : T_SPLIT_ITEMS)
#define WAVES (ITEMS / MMA_LANES)
// Waves along M, a power of two, and along N.
#define WAVES_M (WAVES >= 16 || (WAVES >= 8 && TERMS_A > 1 && T_M >= 64) ? 4 : WAVES >= 4 ? 2 : 1)
#define WAVES_N (WAVES / WAVES_M)
// Blocks of sums per wave.
#define BLOCKS_M (T_M / (WAVES_M * MMA_ROWS))
#define BLOCKS_N (T_N / (WAVES_N * MMA_COLUMNS))
#if WAVES_M * BLOCKS_M * MMA_ROWS != T_M || WAVES_N * BLOCKS_N * MMA_COLUMNS != T_N
#error "waves do not share the tile"
#endif
#define A_K (S_A_K_LAST ? 1 : a_k)
#define B_N (S_B_N_LAST ? 1 : b_n)

// Returns the bits of v rounded to the unit's operand type, half or bfloat16: to nearest, ties to
// even.
static inline uint rounded(const float v) {
#if OPERAND == 1
  ushort bits;
  vstore_half(v, 0, (half *)&bits);
  return bits;
#else
  const uint bits = as_uint(v);
  return v != v ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
#endif
}

// Returns the bits of the next bfloat16 term of *v, and subtracts the term from *v. Term number
// `part` 0 is rounded to nearest, so that the rest may have either sign; later terms are
// truncated.
static inline uint split(float *v, const int part) {
  const uint bits = as_uint(*v) + (part ? 0 : 0x8000u);
  *v -= as_float(bits & 0xffff0000u);
  return bits >> 16;
}

#define ROLE a
#define LINES T_M
#define ELEMENT A_T
#define STORED A_STORAGE
#define PARTS TERMS_A
#define K_LAST S_A_K_LAST
#define WIDE S_A_WIDE
#include "common/unit_slice.inc"
#define ROLE b
#define LINES T_N
#define ELEMENT B_T
#define STORED B_STORAGE
#define PARTS TERMS_B
#define K_LAST (!S_B_N_LAST)
#define WIDE S_B_WIDE
#include "common/unit_slice.inc"

#define LOAD_A(part) unit_load_a(a_part[part], a_tile, (part) * T_M + own_m + i * MMA_ROWS, lane);
#define LOAD_B(to_j, part) \
  MMA_EACH(j, BLOCKS_N) unit_load_b(to_j, b_tile, (part) * T_N + own_n + j * MMA_COLUMNS, lane);
// Multiplies a block of A by the wave's BLOCKS_N blocks of B. Consecutive unit instructions add to
// different blocks of sums, since adding to the same one again has a long latency.
#define MULTIPLY(to, left, right_j)                                             \
  MMA_EACH(step, MMA_STEPS) MMA_EACH(j, BLOCKS_N) {                          \
    MMA_STEP((to)[j], (left) + step * STEP_A, (right_j) + step * STEP_B)       \
  }
// Terms of B kept in registers for all rows of blocks.
#define KEPT_B (TERMS_B > 2 ? 2 : TERMS_B)
#if TERMS_A == 1
#define PRODUCTS LOAD_A(0) MULTIPLY(sums[i], a_part[0], b_part[j][0])
#else
#define TIMES(p, q) MULTIPLY(of_slice, a_part[p], b_part[j][q])
// Terms are loaded on use: registers are scarce.
#if TERMS_B == 1
#define ALL_TIMES LOAD_A(2) TIMES(2, 0) LOAD_A(1) TIMES(1, 0) LOAD_A(0) TIMES(0, 0)
#else
#define LARGER_TIMES LOAD_A(2) TIMES(2, 0) LOAD_A(1) TIMES(1, 1) TIMES(0, 1) TIMES(1, 0) TIMES(0, 0)
#if TERMS_B == 2
#define ALL_TIMES LOAD_A(0) LARGER_TIMES
#else
#define ALL_TIMES                          \
  LOAD_A(0) {                              \
    uint b_last[BLOCKS_N][MMA_B];         \
    LOAD_B(b_last[j], 2)                      \
    MULTIPLY(of_slice, a_part[0], b_last[j])  \
  }                                        \
  LARGER_TIMES
#endif
#endif
#define PRODUCTS                                                                   \
  float of_slice[BLOCKS_N][MMA_SUMS];                                             \
  MMA_EACH(j, BLOCKS_N) MMA_EACH(e, MMA_SUMS) of_slice[j][e] = 0.0f;            \
  ALL_TIMES                                                                        \
  MMA_EACH(j, BLOCKS_N) MMA_EACH(e, MMA_SUMS) sums[i][j][e] += of_slice[j][e];
#endif

// Returns the dot product of a row of A and a column of B over K by multiply-adds, without the
// matrix unit. a_k, b_k: strides along K in elements.
static inline float plain_sum(__global const A_T *a, __global const B_T *b, const IDX_T K,
                              const IDX_T a_k, const IDX_T b_k) {
  float sum = 0.0f;
  for (IDX_T k = 0; k < K; ++k)
    sum += LOAD_AS(A_STORAGE, a, k * a_k) * LOAD_AS(B_STORAGE, b, k * b_k);
  return sum;
}

#define SUM_ROW(i, e) (own_m + (i) * MMA_ROWS + MMA_ROW(lane, e))
#define SUM_COLUMN(j, e) (own_n + (j) * MMA_COLUMNS + MMA_COLUMN(lane, e))
#define FINISH(row, column, sum)                                        \
  {                                                                     \
    const IDX_T m = m0 + (row), n = n0 + (column);                      \
    if (m < M && n < N) {                                               \
      const F v0 = (sum);                                               \
      EPILOGUE_LOADS EPILOGUE_BODY                                                        \
      STORE_AS(Y_STORAGE, AT(y), (batch * M + m) * N + n, (OUT_T)(EPILOGUE_RESULT)); \
    }                                                                   \
  }

// Slices in local memory; with two, one is filled while the other is multiplied.
#define SLICES (TERMS_A == 1 && UNIT == MMA_SYNC ? 2 : 1)
#define A_TILE (TERMS_A * T_M * OCTETS)
#define B_TILE (TERMS_B * T_N * OCTETS)
#define FETCH(k)                                               \
  a_fetch(&a_ahead, a_from, m0, M, a_row, k, K, A_K, item);    \
  b_fetch(&b_ahead, b_from, n0, N, B_N, k, K, b_k, item);
// Stores the slice at k from registers to local memory.
#define PUT(slice, k)                                          \
  {                                                            \
    if ((k) + MMA_K > K) {                                    \
      a_clear(&a_ahead, k, K, item);                           \
      b_clear(&b_ahead, k, K, item);                           \
    }                                                          \
    a_put(a_tiles + (slice) * A_TILE, &a_ahead, item);         \
    b_put(b_tiles + (slice) * B_TILE, &b_ahead, item);         \
  }

__kernel MMA_ATTRIBUTES __attribute__((reqd_work_group_size(MMA_LANES, WAVES, 1)))
void gemm_unit_gpu(OUT(Y_T, y), IN(A_T, a), IN(B_T, b), const IDX_T M, const IDX_T N,
                   const IDX_T K, const IDX_T d1, const IDX_T a_s0, const IDX_T a_s1,
                   const IDX_T a_row, const IDX_T a_k, const IDX_T b_s0, const IDX_T b_s1,
                   const IDX_T b_k, const IDX_T b_n EPILOGUE_PARAMS) {
  __local uint4 a_tiles[SLICES * A_TILE], b_tiles[SLICES * B_TILE];
  const IDX_T lane = get_local_id(0), wave = get_local_id(1), item = wave * MMA_LANES + lane;
  MMA_LOCAL(WAVES)
  const IDX_T n0 = (IDX_T)(get_global_id(0) / MMA_LANES) * T_N;
  const IDX_T m0 = (IDX_T)(get_global_id(1) / WAVES) * T_M;
  const IDX_T batch = get_global_id(2), i0 = batch / d1, i1 = batch % d1;
  const IDX_T own_m = wave / WAVES_N * (BLOCKS_M * MMA_ROWS);
  const IDX_T own_n = wave % WAVES_N * (BLOCKS_N * MMA_COLUMNS);
  __global const A_T *const a_from = AT(a) + i0 * a_s0 + i1 * a_s1;
  __global const B_T *const b_from = AT(b) + i0 * b_s0 + i1 * b_s1;
  float sums[BLOCKS_M][BLOCKS_N][MMA_SUMS];
  MMA_EACH(i, BLOCKS_M) MMA_EACH(j, BLOCKS_N) MMA_EACH(e, MMA_SUMS) sums[i][j][e] = 0.0f;
  a_next a_ahead;
  b_next b_ahead;
  a_start(&a_ahead, m0, M, a_row, item);
  b_start(&b_ahead, n0, N, B_N, item);
  if (K > 0) {
    FETCH(0)
#if SLICES == 2
    PUT(0, 0)
    if (MMA_K < K) {
      FETCH(MMA_K)
    }
#endif
  }
#if SLICES == 2
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
  for (IDX_T k0 = 0, slice = 0; k0 < K; k0 += MMA_K) {
#if SLICES == 2
    if (k0 + MMA_K < K) PUT(1 - slice, k0 + MMA_K)
#else
    PUT(0, k0)
#endif
#if UNIT != MMA_SYNC
    barrier(CLK_LOCAL_MEM_FENCE);  // before FETCH: AMD's barriers wait for loads in flight
#endif
    if (k0 + SLICES * MMA_K < K) {
      FETCH(k0 + SLICES * MMA_K)
    }
#if UNIT == MMA_SYNC && SLICES == 1
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    TILE a_tile = a_tiles + slice * A_TILE;
    TILE b_tile = b_tiles + slice * B_TILE;
    uint b_part[BLOCKS_N][KEPT_B][MMA_B];
    MMA_EACH(part, KEPT_B) LOAD_B(b_part[j][part], part)
    MMA_EACH(i, BLOCKS_M) {
      uint a_part[TERMS_A][MMA_A];
      PRODUCTS
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (SLICES == 2) slice = 1 - slice;
  }
  // Set if a sum is infinite or NaN: an operand was, or a product of terms overflowed although the
  // exact sum may be finite.
  bool plainly = false;
  if (TERMS_A > 1) {
    MMA_EACH(i, BLOCKS_M) MMA_EACH(j, BLOCKS_N) MMA_EACH(e, MMA_SUMS)
      plainly |= (as_uint(sums[i][j][e]) & 0x7fffffffu) >= 0x7f800000u;
  }
  if (!plainly) {
    MMA_EACH(i, BLOCKS_M) MMA_EACH(j, BLOCKS_N) MMA_EACH(e, MMA_SUMS)
      FINISH(SUM_ROW(i, e), SUM_COLUMN(j, e), sums[i][j][e])
    return;
  }
  _Pragma("unroll 1") for (IDX_T s = 0; s < BLOCKS_M * BLOCKS_N * MMA_SUMS; ++s) {
    const IDX_T e = s % MMA_SUMS, j = s / MMA_SUMS % BLOCKS_N, i = s / MMA_SUMS / BLOCKS_N;
    FINISH(SUM_ROW(i, e), SUM_COLUMN(j, e),
           plain_sum(a_from + m * a_row, b_from + n * B_N, K, A_K, b_k))
  }
}
