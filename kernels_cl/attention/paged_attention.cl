// softmax(scale q K^T) V over a cache in pages (common/pages.clh), causal: a token sees the keys of its
// sequence up to its place. q [tokens, heads * S_D], y [tokens, heads * S_DV].
//   WINDOW   and no keys before its place - left_window
//   SOFTCAP  scores are softcap * tanh(score / softcap)
//   ALIBI    scores get slopes[head] * (key - place)
//   BIASES   scores get biases[head][place - key], the last of `distances` for all that are farther
//   SINKS    a further key of that score without a value: sinks[head]
//   T_VW     lanes; PAGE, S_D and S_DV are multiples. 1: a work-item has one query of one head
#ifndef WINDOW
#define WINDOW 0
#define SOFTCAP 0
#define ALIBI 0
#define BIASES 0
#define SINKS 0
#endif
#ifndef T_VW
#define T_VW 8
#define T_MR 4
#define T_NK 2
#define S_NV 2
#define T_ROWS 32
#define T_PAGES 4
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/pages.clh"
#include "common/index.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#if ALIBI
#define ALIBI_INPUT , IN(float, slopes)
#else
#define ALIBI_INPUT
#endif
#if BIASES
#define BIASES_INPUT , IN(float, biases), const IDX_T distances
#else
#define BIASES_INPUT
#endif
#if SINKS
#define SINKS_INPUT , IN(float, sinks)
#else
#define SINKS_INPUT
#endif
#define ATTENTION                                                                               \
  OUT(float, y), IN(float, q), PAGES(IN) ALIBI_INPUT BIASES_INPUT SINKS_INPUT,                   \
      const float scale, const IDX_T left_window, const float softcap

#if T_VW == 1
#include "common/online_key.clh"
#define VALUE_AT(d) LOAD_AS(CACHE, page, d)

__kernel void paged_attention_any(ATTENTION) {
  const IDX_T token = get_global_id(1), head = get_global_id(0);
  if (head >= heads) return;
  __global const int *const own = AT(step) + token * STEP_TOKEN;
  __global float *const to = AT(y) + (token * heads + head) * S_DV;
  if (own[1] < 0) {
    for (int d = 0; d < S_DV; ++d) to[d] = 0.0f;
    return;
  }
  const IDX_T sequence = clrt_length(own[1], sequences - 1, AT(status));
  const IDX_T place = clrt_length(own[2], width * PAGE - 1, AT(status));
  const IDX_T kv_head = head / (heads / kv_heads);
  __global const float *const query = AT(q) + (token * heads + head) * S_D;
  float x[S_D], result[S_DV];
  for (int d = 0; d < S_D; ++d) x[d] = query[d] * scale;
  for (int d = 0; d < S_DV; ++d) result[d] = 0.0f;
  #if SINKS
  float top = AT(sinks)[head], sum = 1.0f;
#else
  float top = -FLT_MAX, sum = 0.0f;
#endif
  for (IDX_T key = WINDOW ? i_max(0, place - left_window) : 0; key <= place; ++key) {
    __global const CACHE_T *page = 0;
    const IDX_T number = AT(table)[sequence * width + key / PAGE];
    FIND_PAGE(page, number)
    if (!page) {
      AT(status)[0] = number ? number : 1L << 31;
      continue;
    }
    page += kv_head * HEAD_ELEMENTS;
    float s = 0.0f;
    for (int d = 0; d < S_D; ++d) s = x[d] * LOAD_AS(CACHE, page, d * PAGE + key % PAGE) + s;
#if SOFTCAP
    s = softcap * c_tanh(s / softcap);
#endif
#if ALIBI
    s += AT(slopes)[head] * (float)(key - place);
#endif
#if BIASES
    s += AT(biases)[head * distances + i_min(place - key, distances - 1)];
#endif
    page += PAGE * S_D + key % PAGE * S_DV;
    ADD_KEY(s, top, sum, result, S_DV, VALUE_AT)
  }
  for (int d = 0; d < S_DV; ++d) to[d] = result[d] / sum;
}
#else
#include "common/repeat.clh"
#include "common/rows.clh"
#include "common/widen.clh"
#define BLOCK (PAGE * T_PAGES)
#define ROWS(X) CAT(ROWS_, T_MR)(X)
#define KEYS(X, i) CAT(VECTORS_, T_NK)(X, i)
#define COLUMNS(X, i) CAT(VECTORS_, S_NV)(X, i)

#define QUERY(i) __global const float *const query##i = AT(q) + queries[i_min(m0 + i, rows - 1)];
#define ZERO(i, j) F acc##i##_##j = (F)(0.0f);
#define ZERO_ROW(i) KEYS(ZERO, i)
#define LOAD_KEYS(i, j) const F key##j = LOAD_WIDE(CACHE, keys + j * VW);
#define SCORE(i, j) acc##i##_##j = (F)(query##i[d]) * key##j + acc##i##_##j;
#define SCORE_ROW(i) KEYS(SCORE, i)

#if SOFTCAP
#define CAPPED(s) ((F)(softcap) * c_tanh((s) / (F)(softcap)))
#else
#define CAPPED(s) (s)
#endif
#if ALIBI
#define SLOPED(s, r) ((s) + (F)(slope[r]) * WIDE_AS(float, at - (I)(places[r])))
#else
#define SLOPED(s, r) (s)
#endif
#if BIASES
#define BIASED(s, r, key) ((s) + bias_of(bias[r], distances, places[r] - (key)))
#else
#define BIASED(s, r, key) (s)
#endif
#if WINDOW
#define IN_WINDOW(r) (at >= (I)(places[r] - left_window))
#else
#define IN_WINDOW(r) (at >= (I)(0))
#endif
#define KEEP_SCORES(i, j)                                                                  \
  {                                                                                        \
    const IDX_T r = i_min(m0 + i, rows - 1);                                               \
    const IDX_T key = first_key + k + j * VW;                                              \
    const I at = lanes + (I)(key);                                                         \
    const F s = BIASED(SLOPED(CAPPED(acc##i##_##j * (F)(scale)), r), r, key);              \
    scores[((m0 + i) * BLOCK + p * PAGE + k) / VW + j] =                                   \
        PICK((at <= (I)(places[r])) & IN_WINDOW(r), s, (F)(-INFINITY));                    \
  }
#define KEEP_SCORE_ROW(i) KEYS(KEEP_SCORES, i)

#define WEIGHTS(i) const float *const weight##i = (const float *)scores + (m0 + i) * BLOCK;
#define RESUME(i, j) F acc##i##_##j = result[((m0 + i) * S_DV + c) / VW + j];
#define RESUME_ROW(i) COLUMNS(RESUME, i)
#define LOAD_VALUES(i, j) const F value##j = LOAD_WIDE(CACHE, values + j * VW);
#define ADD(i, j) acc##i##_##j = (F)(weight##i[p * PAGE + n]) * value##j + acc##i##_##j;
#define ADD_ROW(i) COLUMNS(ADD, i)
#define KEEP(i, j) result[((m0 + i) * S_DV + c) / VW + j] = acc##i##_##j;
#define KEEP_ROW(i) COLUMNS(KEEP, i)

#if BIASES
// Biases of VW keys, of which the first is so far before the place; those behind it count for nothing.
static inline F bias_of(__global const float *const biases, const IDX_T distances,
                        const IDX_T distance) {
  if (distance - (VW - 1) >= distances - 1) return (F)(biases[distances - 1]);
  F found;
  for (int lane = 0; lane < VW; ++lane)
    ((float *)&found)[lane] = biases[i_max(0, i_min(distance - lane, distances - 1))];
  return found;
}
#endif

static inline F larger(const F a, const F b) { return PICK(a > b, a, b); }

// A work-item has one head of keys, and the queries of `span` tokens that share it: T_ROWS at a time,
// those of tokens of one sequence. The queries of a tile are broadcast against vectors of keys, then
// their weights against vectors of a value's columns.
__kernel SINGLE_ITEM
void paged_attention_cpu(ATTENTION, const IDX_T span) {
  const IDX_T kv_head = get_group_id(0), group = heads / kv_heads;
  const IDX_T last_token = i_min((IDX_T)(get_group_id(1) + 1) * span, tokens);
  I lanes;
  for (int lane = 0; lane < VW; ++lane) ((int *)&lanes)[lane] = lane;
  IDX_T token = get_group_id(1) * span;
  while (token < last_token) {
    __global const int *const own = AT(step) + token * STEP_TOKEN;
    const IDX_T first_head = kv_head * group;
    if (own[1] < 0) {
      for (IDX_T c = 0; c < group * S_DV; c += VW)
        STORE_F(AT(y) + (token * heads + first_head) * S_DV + c, (F)(0.0f));
      ++token;
      continue;
    }
    const IDX_T sequence = clrt_length(own[1], sequences - 1, AT(status));
    IDX_T run = token + 1;
    while (run < last_token && AT(step)[run * STEP_TOKEN + 1] == own[1]) ++run;
    for (IDX_T row = token * group; row < run * group; row += T_ROWS) {
      const IDX_T rows = i_min(T_ROWS, run * group - row);
      F scores[T_ROWS * BLOCK / VW], result[T_ROWS * S_DV / VW], sums[T_ROWS];
      float tops[T_ROWS];
      IDX_T queries[T_ROWS], places[T_ROWS];
#if ALIBI
      float slope[T_ROWS];
#endif
#if BIASES
      __global const float *bias[T_ROWS];
#endif
      IDX_T key_end = 0, key_begin = width * PAGE;
      for (IDX_T r = 0; r < rows; ++r) {
        const IDX_T t = (row + r) / group, head = first_head + (row + r) % group;
        places[r] = clrt_length(AT(step)[t * STEP_TOKEN + 2], width * PAGE - 1, AT(status));
        queries[r] = (t * heads + head) * S_D;
        key_end = i_max(key_end, places[r] + 1);
        key_begin = i_min(key_begin, WINDOW ? i_max(0, places[r] - left_window) : 0);
        sums[r] = (F)(0.0f);
        tops[r] = -FLT_MAX;
#if SINKS
        tops[r] = AT(sinks)[head];
        ((float *)&sums[r])[0] = 1.0f;
#endif
#if ALIBI
        slope[r] = AT(slopes)[head];
#endif
#if BIASES
        bias[r] = AT(biases) + head * distances;
#endif
      }
      const IDX_T tiles = (rows + T_MR - 1) / T_MR * T_MR;
      for (IDX_T i = 0; i < tiles * S_DV / VW; ++i) result[i] = (F)(0.0f);
      for (IDX_T block = key_begin / PAGE; block * PAGE < key_end; block += T_PAGES) {
        const IDX_T pages = i_min(T_PAGES, (key_end + PAGE - 1) / PAGE - block);
        __global const CACHE_T *heads_of[T_PAGES];
        for (IDX_T p = 0; p < pages; ++p) {
          const IDX_T number = AT(table)[sequence * width + block + p];
          __global const CACHE_T *page = 0;
          FIND_PAGE(page, number)
          if (!page) {
            AT(status)[0] = number ? number : 1L << 31;
            return;
          }
          heads_of[p] = page + kv_head * HEAD_ELEMENTS;
        }
        for (IDX_T m0 = 0; m0 < rows; m0 += T_MR) {
          ROWS(QUERY)
          for (IDX_T p = 0; p < pages; ++p) {
            const IDX_T first_key = (block + p) * PAGE;
            for (IDX_T k = 0; k < PAGE; k += T_NK * VW) {
              __global const CACHE_T *keys = heads_of[p] + k;
              ROWS(ZERO_ROW)
              for (IDX_T d = 0; d < S_D; ++d, keys += PAGE) {
                KEYS(LOAD_KEYS, 0)
                ROWS(SCORE_ROW)
              }
              ROWS(KEEP_SCORE_ROW)
            }
          }
        }
        for (IDX_T r = 0; r < rows; ++r) {
          F *const weights = scores + r * BLOCK / VW;
          F top = weights[0];
          for (IDX_T i = 1; i < pages * PAGE / VW; ++i) top = larger(top, weights[i]);
          FOLD(top, larger)
          top = larger(top, (F)(tops[r]));
          const F rescale = exp_below_0((F)(tops[r]) - top);
          F sum = sums[r] * rescale;
          for (IDX_T i = 0; i < pages * PAGE / VW; ++i) {
            weights[i] = exp_below_0(weights[i] - top);
            sum += weights[i];
          }
          for (IDX_T i = 0; i < S_DV / VW; ++i) result[r * S_DV / VW + i] *= rescale;
          sums[r] = sum;
          tops[r] = ((const float *)&top)[0];
        }
        for (IDX_T r = rows; r < tiles; ++r) {
          for (IDX_T i = 0; i < pages * PAGE / VW; ++i) scores[r * BLOCK / VW + i] = (F)(0.0f);
        }
        for (IDX_T m0 = 0; m0 < rows; m0 += T_MR) {
          ROWS(WEIGHTS)
          for (IDX_T c = 0; c < S_DV; c += S_NV * VW) {
            ROWS(RESUME_ROW)
            for (IDX_T p = 0; p < pages; ++p) {
              // What lies behind the last key was never written.
              const IDX_T count = i_min(PAGE, key_end - (block + p) * PAGE);
              __global const CACHE_T *values = heads_of[p] + PAGE * S_D + c;
              for (IDX_T n = 0; n < count; ++n, values += S_DV) {
                COLUMNS(LOAD_VALUES, 0)
                ROWS(ADD_ROW)
              }
            }
            ROWS(KEEP_ROW)
          }
        }
      }
      for (IDX_T r = 0; r < rows; ++r) {
        F sum = sums[r];
        FOLD(sum, JOIN_SUM)
        const F inverse = (F)(1.0f) / sum;
        __global float *const to = AT(y) + (row + r) / group * heads * S_DV +
                                   (first_head + (row + r) % group) * S_DV;
        for (IDX_T i = 0; i < S_DV / VW; ++i)
          STORE_F(to + i * VW, result[r * S_DV / VW + i] * inverse);
      }
    }
    token = run;
  }
}
#endif
