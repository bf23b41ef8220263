// softmax(scale * Q K^T + mask) V per (batch, head), online over blocks of keys.
// Vectors hold queries, so that rows of K and V are read in place as broadcast scalars and nothing
// but the small query block is transposed. One work-item does T_VW * T_NV queries of one head.
//   S_D, S_DV   head sizes of Q, K and of V
//   MASK        0 none, 1 the same for all queries, 2 by query; MASK_BOOL: true keeps, else added
//   CAUSAL      key j only for queries i >= j
//   T_NV        vectors of queries; T_MK keys and T_MV columns of V per register tile
//   T_KB        keys per block, a multiple of T_MK
#include "common/base.clh"
#ifndef S_D
#define S_D 32
#define S_DV 32
#endif
#ifndef MASK
#define MASK 0
#define MASK_BOOL 0
#define CAUSAL 0
#define NAN_TO_ZERO 0
#endif
#ifndef T_VW
#define T_VW 8
#define T_NV 2
#define T_MK 6
#define T_MV 4
#define T_KB 126
#endif
#define VW T_VW
#if T_KB % T_MK
#error "T_KB must be a multiple of T_MK: the last tile is stored whole"
#endif
#include "common/math.clh"
#include "common/scalar.clh"

#if MASK_BOOL
#define MASK_T uchar
#define MASK_VALUE(m) ((m) ? 0.0f : -INFINITY)
#else
#define MASK_T float
#define MASK_VALUE(m) (m)
#endif
#if MASK
#define MASK_INPUT , IN(MASK_T, mask)
#else
#define MASK_INPUT
#endif

// exp(x) for x <= 0, <= 2 ulp: half the work of c_exp, as it cannot overflow; 0 below -87, where
// the weight of a key would be subnormal. NaN stays NaN.
static inline F exp_below_0(F x) {
  F n;
  const I k = c_round_int(x * (F)(1.44269504088896341f), &n);
  F r = x - n * (F)(0.693359375f);
  r = r + n * (F)(2.12194440e-4f);
  F p = (F)(1.9875691500e-4f);
  p = p * r + (F)(1.3981999507e-3f);
  p = p * r + (F)(8.3334519073e-3f);
  p = p * r + (F)(4.1665795894e-2f);
  p = p * r + (F)(1.6666665459e-1f);
  p = p * r + (F)(5.0000001201e-1f);
  p = p * (r * r) + r + (F)(1.0f);
  return PICK(x < (F)(-87.0f), (F)(0.0f), p * c_pow2i(k));
}

// Register tiles: one named variable per accumulator, since an array of them stays in memory.
#define ROWS_1(M) M(0)
#define ROWS_2(M) ROWS_1(M) M(1)
#define ROWS_3(M) ROWS_2(M) M(2)
#define ROWS_4(M) ROWS_3(M) M(3)
#define ROWS_5(M) ROWS_4(M) M(4)
#define ROWS_6(M) ROWS_5(M) M(5)
#define ROWS_7(M) ROWS_6(M) M(6)
#define ROWS_8(M) ROWS_7(M) M(7)
#define COLS_1(M, r) M(r, 0)
#define COLS_2(M, r) COLS_1(M, r) M(r, 1)
#define COLS_3(M, r) COLS_2(M, r) M(r, 2)
#define COLS_4(M, r) COLS_3(M, r) M(r, 3)
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define COLS(M, r) JOIN(COLS_, T_NV)(M, r)
#define EACH(M) JOIN(COLS_, T_NV)(M, _)

#define TQ (VW * T_NV)
#define ROUND_UP(a, b) (((a) + (b) - 1) / (b) * (b))

#define ZERO(r, n) F acc##r##_##n = (F)(0.0f);
#define MULTIPLY(r, n) acc##r##_##n = a * b##n + acc##r##_##n;

#define KEY_ROW(r) \
  const IDX_T j##r = i_min(key + r, count - 1); \
  __global const float *row##r = keys + j##r * k_step; \
  COLS(ZERO, r)
#define LOAD_QUERY(r, n) const F b##n = query[d * T_NV + n];
#define KEY_STEP(r) { const F a = (F)(row##r[d]); COLS(MULTIPLY, r) }

#if MASK == 1
#define ADD_MASK(r) const F m = (F)(MASK_VALUE(masks[j##r * mask_key]));
#define MASKED(r, n) (acc##r##_##n + m)
#elif MASK == 2
#define ADD_MASK(r)
#define MASKED(r, n) (acc##r##_##n + score[(key + r) * T_NV + n])
#else
#define ADD_MASK(r)
#define MASKED(r, n) acc##r##_##n
#endif
#if CAUSAL
#define VISIBLE(r, n, s) PICK((I)(first_key + j##r) <= index##n, s, (F)(-INFINITY))
#else
#define VISIBLE(r, n, s) (s)
#endif
#define STORE_SCORE(r, n) { \
    const F s = MASKED(r, n); \
    const F visible = VISIBLE(r, n, s); \
    score[(key + r) * T_NV + n] = visible; \
    top##n = PICK(visible > top##n, visible, top##n); }
#define SCORE_ROW(r) { ADD_MASK(r) COLS(STORE_SCORE, r) }

// Columns past S_DV are computed from the last one and never stored.
#define COLUMN(r) const int c##r = d + r < S_DV ? d + r : S_DV - 1; COLS(SCALED, r)
#define SCALED(r, n) F acc##r##_##n = result[(d + r) * T_NV + n] * rescale##n;
#define LOAD_WEIGHT(r, n) const F b##n = score[j * T_NV + n];
#define VALUE_STEP(r) { const F a = (F)(row[c##r]); COLS(MULTIPLY, r) }
#define STORE_COLUMN(r, n) result[(d + r) * T_NV + n] = acc##r##_##n;
#define STORE_RESULT(r) COLS(STORE_COLUMN, r)

// The running maximum starts at the lowest finite number, not at -inf: a row of only -inf then has
// the sum 0 (0/0 = NaN as in ONNX), and -inf - -inf never occurs.
#define START(r, n) F top##n = (F)(-FLT_MAX), sum##n = (F)(0.0f);
#define KEEP_TOP(r, n) const F before##n = top##n;
#define RESCALE(r, n) const F rescale##n = exp_below_0(before##n - top##n); sum##n = sum##n * rescale##n;
#define WEIGHT(r, n) { \
    const F p = exp_below_0(score[j * T_NV + n] - top##n); \
    score[j * T_NV + n] = p; \
    sum##n = sum##n + p; }
#define INVERSE(r, n) \
  const F inverse##n = PICK(sum##n == (F)(0.0f), (F)(of_no_keys), (F)(1.0f) / sum##n);
#define NORMALIZE(r, n) result[d * T_NV + n] = result[d * T_NV + n] * inverse##n;
#define INDEX(r, n) const I index##n = lanes[n];

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void fused_attention_cpu(OUT(float, y), IN(float, q), IN(float, k), IN(float, v) MASK_INPUT,
                         const IDX_T queries, const IDX_T key_count, const IDX_T group,
                         const IDX_T q_step, const IDX_T k_step, const IDX_T v_step,
                         const IDX_T mask_batch, const IDX_T mask_head, const IDX_T mask_query,
                         const IDX_T mask_key, const float scale) {
  const IDX_T first = get_group_id(0) * TQ;
  const IDX_T head = get_group_id(1);
  const IDX_T batch = get_group_id(2);
  const IDX_T kv_head = head / group;
  F query[S_D * T_NV];
  F score[T_KB * T_NV];
  F result[ROUND_UP(S_DV, T_MV) * T_NV];

  {
    float *transposed = (float *)query;
    __global const float *rows = AT(q) + batch * queries * q_step + head * S_D;
    for (int lane = 0; lane < TQ; ++lane) {
      __global const float *row = rows + i_min(first + lane, queries - 1) * q_step;
      for (int d = 0; d < S_D; ++d) transposed[d * TQ + lane] = row[d] * scale;
    }
  }
#if CAUSAL
  I lanes[T_NV];
  for (int lane = 0; lane < TQ; ++lane) ((int *)lanes)[lane] = first + lane;
  EACH(INDEX)
  const IDX_T key_end = i_min(key_count, first + TQ);
#else
  const IDX_T key_end = key_count;
#endif
#if MASK
  __global const MASK_T *mask_rows = AT(mask) + batch * mask_batch + head * mask_head;
#endif

  EACH(START)
  for (int i = 0; i < ROUND_UP(S_DV, T_MV) * T_NV; ++i) result[i] = (F)(0.0f);
  for (IDX_T first_key = 0; first_key < key_end; first_key += T_KB) {
    const IDX_T count = i_min(T_KB, key_end - first_key);
    __global const float *keys =
        AT(k) + (batch * key_count + first_key) * k_step + kv_head * S_D;
    __global const float *values =
        AT(v) + (batch * key_count + first_key) * v_step + kv_head * S_DV;
#if MASK
    __global const MASK_T *masks = mask_rows + first_key * mask_key;
#endif
#if MASK == 2
    for (int lane = 0; lane < TQ; ++lane) {
      __global const MASK_T *row = masks + i_min(first + lane, queries - 1) * mask_query;
      for (IDX_T j = 0; j < ROUND_UP(count, T_MK); ++j)
        ((float *)score)[j * TQ + lane] = MASK_VALUE(row[i_min(j, count - 1) * mask_key]);
    }
#endif

    EACH(KEEP_TOP)
    // The last tile repeats the last key: it changes no maximum, and is left out below.
    for (IDX_T key = 0; key < count; key += T_MK) {
      JOIN(ROWS_, T_MK)(KEY_ROW)
      for (int d = 0; d < S_D; ++d) {
        EACH(LOAD_QUERY)
        JOIN(ROWS_, T_MK)(KEY_STEP)
      }
      JOIN(ROWS_, T_MK)(SCORE_ROW)
    }
    EACH(RESCALE)
    for (IDX_T j = 0; j < count; ++j) { EACH(WEIGHT) }

    for (int d = 0; d < S_DV; d += T_MV) {
      JOIN(ROWS_, T_MV)(COLUMN)
      __global const float *row = values;
      for (IDX_T j = 0; j < count; ++j) {
        EACH(LOAD_WEIGHT)
        JOIN(ROWS_, T_MV)(VALUE_STEP)
        row += v_step;
      }
      JOIN(ROWS_, T_MV)(STORE_RESULT)
    }
  }

  const float of_no_keys = NAN_TO_ZERO || key_count == 0 ? 0.0f : NAN;
  EACH(INVERSE)
  for (int d = 0; d < S_DV; ++d) { EACH(NORMALIZE) }
  const IDX_T y_step = get_num_groups(1) * S_DV;
  __global float *out = AT(y) + (batch * queries + first) * y_step + head * S_DV;
  const int valid = i_min(TQ, queries - first);
  for (int lane = 0; lane < valid; ++lane) {
    for (int d = 0; d < S_DV; ++d) out[lane * y_step + d] = ((const float *)result)[d * TQ + lane];
  }
}
