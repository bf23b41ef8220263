// y = softmax(scale * q K^T) V with K and V in the pages of a KV cache, for CPU devices (kernel
// paged_attention_cpu, described at its definition). Operands and options: common/paged.clh and
// common/pages.clh.
//   q        read: float32 [tokens, heads * S_D];  y  written: float32 [tokens, heads * S_DV]
//   parts    scratch float32 [splits][tokens * heads][PART]: partial results of pages that are
//            split among work-groups (common/paged_partials.clh)
//   arrived  int64 [1]: counts finished work-groups
//   records  scratch, with INT8_CACHE: quantized queries
//   T_VW     lanes per vector; PAGE, S_D and S_DV are multiples of it
//   T_MR     rows (queries) per register tile;  T_NK, S_NV  vectors of keys, and of value columns,
//            per tile
//   T_ROWS   queries processed together;  T_PAGES  pages per block
//   INT8_CACHE  1: scores are int8 dot products, of tiles of S_DOTS rows, and of one tile of
//               S_OTHERS remaining rows
//   FEW      1: there are few rows, so that pages are read at memory speed; the next page is
//            prefetched
#ifndef T_VW
#define T_VW 8
#define T_MR 4
#define T_NK 2
#define S_NV 2
#define T_ROWS 32
#define T_PAGES 4
#define S_DOTS 4
#define S_OTHERS 0
#endif
#ifndef FEW
#define FEW 0
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/paged.clh"
#include "common/index.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/repeat.clh"
#include "common/rows.clh"
#include "common/widen.clh"
#include "common/paged_partials.clh"
#define BLOCK (PAGE * T_PAGES)
#define ROWS(X) CAT(ROWS_, T_MR)(X)
#define KEYS(X, i) CAT(VECTORS_, T_NK)(X, i)
#define COLUMNS(X, i) CAT(VECTORS_, S_NV)(X, i)

#if FEW
// Prefetches the next bytes: hardware prefetchers stop at page boundaries.
#define FETCH(from, count)                                            \
  for (int byte = 0; byte < (int)((count) * sizeof(CACHE_T)); byte += 64) \
    PREFETCH_FAR((__global const char *)(from) + byte);
#else
#define FETCH(from, count)
#endif

#if INT8_CACHE
#include "common/round_block.clh"
#define VALUES int8
#define RECORDS , OUT(uchar, records)
#define TILE_RECORDS (T_MR * KEY_BLOCKS * ROW_RECORD)
#define VALUE_UNITS(page) ((page) + KEY_ELEMENTS + PAGE * S_DV)
#define DOT_ROWS(name, rows) DOT_TILE(name, rows)
DOT_ROWS(dot_rows, S_DOTS)
#if T_MR > S_DOTS
DOT_ROWS(dot_others, S_OTHERS)
#endif
#define TAKE(i, j) const F acc##i##_##j = dots[(i * PAGE + k) / VW + j];
#define TAKE_ROW(i) KEYS(TAKE, i)

// Quantizes a tile of queries to int8, in blocks of DOT_BLOCK elements: writes T_MR rows to the
// records `to` (common/dots.clh). Query i of `count` has S_D floats at q + queries[i]; rows after
// the last query repeat it.
static inline void round_queries(__global uchar *to, __global const float *q, const IDX_T *queries,
                                 const IDX_T count) {
  for (IDX_T i = 0; i < T_MR; ++i) {
    const IDX_T first = i < S_DOTS ? 0 : S_DOTS, rows = i < S_DOTS ? S_DOTS : S_OTHERS;
    for (int b = 0; b < KEY_BLOCKS; ++b) {
      __global const float *const x = q + queries[i_min(i, count - 1)] + b * DOT_BLOCK;
      F block[BLOCK_VECTORS], most = (F)(0.0f);
      for (int n = 0; n < BLOCK_VECTORS; ++n) {
        block[n] = b * DOT_BLOCK + n * VW < S_D ? LOAD_F(x + n * VW) : (F)(0.0f);
        const F size = c_abs(block[n]);
        most = LARGER(size, most);
      }
      round_block(to + (first * KEY_BLOCKS + b * rows + i - first) * ROW_RECORD, block, most);
    }
  }
}
#else
#define VALUES CACHE
#define RECORDS
#endif
#define QUERY(i) __global const float *const query##i = AT(q) + queries[i_min(m0 + i, rows - 1)];
#define CLEAR(i, j) F acc##i##_##j = (F)(0.0f);
#define CLEAR_ROW(i) KEYS(CLEAR, i)
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
#define LOAD_VALUES(i, j) const F value##j = LOAD_WIDE(VALUES, values + j * VW);
#define ADD(i, j) acc##i##_##j = (F)(weight##i[p * PAGE + n]) * value##j + acc##i##_##j;
#define ADD_ROW(i) COLUMNS(ADD, i)
#define KEEP(i, j) result[((m0 + i) * S_DV + c) / VW + j] = acc##i##_##j;
#define KEEP_ROW(i) COLUMNS(KEEP, i)

#if BIASES
// Returns the position biases of VW adjacent keys, the first of them `distance` positions before
// the query. biases[d] is for a key d positions before the query; larger distances use the last
// one, biases[distances - 1]. Keys after the query get any value, as their scores are discarded.
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

// Merges the partial results of each query whose pages were split among work-groups: parts
// [split][query][PART] (common/paged_partials.clh) into y [query][S_DV].
static void join_parts(__global float *y, __global const float *parts, const IDX_T queries) {
  for (IDX_T query = 0; query < queries; ++query) {
    __global const float *const own = parts + query * PART;
    const IDX_T shares = (IDX_T)own[SHARES], step = queries * PART;
    if (shares == 1) continue;
    float top = own[TOP];
    for (IDX_T s = 1; s < shares; ++s) top = own[s * step + TOP] > top ? own[s * step + TOP] : top;
    F result[S_DV / VW], sum = (F)(0.0f);
    for (IDX_T i = 0; i < S_DV / VW; ++i) result[i] = (F)(0.0f);
    for (IDX_T s = 0; s < shares; ++s) {
      __global const float *const part = own + s * step;
      const F weight = exp_below_0((F)(part[TOP] - top));
      sum += weight * (F)(part[SUM]);
      for (IDX_T i = 0; i < S_DV / VW; ++i) result[i] += weight * LOAD_F(part + i * VW);
    }
    for (IDX_T i = 0; i < S_DV / VW; ++i) STORE_F(y + query * S_DV + i * VW, result[i] / sum);
  }
}

// Attention over a paged KV cache. A work-group of one work-item has, by its index along
// dimensions 0 to 2: a KV head, with the query heads that share it; `span` tokens, or, if span is
// 0, all consecutive tokens of a sequence, if its token is the first of them; and a split of the
// pages, one of up to `splits` parts in order, of at least T_PAGES pages each. It processes T_ROWS
// queries of one sequence at a time: queries are broadcast against vectors of keys, then weights
// against vectors of value columns. The last work-item to finish merges the parts, so none waits
// for another.
__kernel SINGLE_ITEM
void paged_attention_cpu(ATTENTION RECORDS, OUT(float, parts), INOUT(long, arrived),
                         const IDX_T span, const IDX_T splits) {
  const IDX_T kv_head = get_group_id(0), group = heads / kv_heads, split = get_group_id(2);
  I lanes;
  for (int lane = 0; lane < VW; ++lane) ((int *)&lanes)[lane] = lane;
  IDX_T token = get_group_id(1) * i_max(span, 1), last_token = i_min(token + i_max(span, 1), tokens);
  if (!span && AT(step)[token * STEP_TOKEN + 1] >= 0) {
    __global const int *const all = AT(step) + 1;
    const int own = all[token * STEP_TOKEN];
    while (last_token < tokens && all[last_token * STEP_TOKEN] == own) ++last_token;
    if (token && all[(token - 1) * STEP_TOKEN] == own) last_token = token;  // of an earlier group
  }
#if INT8_CACHE
  __global uchar *const rounded =
      AT(records) + ((split * get_num_groups(1) + get_group_id(1)) * kv_heads + kv_head) *
                        (T_ROWS / T_MR) * TILE_RECORDS;
#endif
  while (token < last_token) {
    __global const int *const own = AT(step) + token * STEP_TOKEN;
    const IDX_T first_head = kv_head * group;
    if (own[1] < 0) {
      if (!split) {
        for (IDX_T c = 0; c < group * S_DV; c += VW)
          STORE_F(AT(y) + (token * heads + first_head) * S_DV + c, (F)(0.0f));
        if (splits > 1)
          for (IDX_T h = 0; h < group; ++h)
            AT(parts)[(token * heads + first_head + h) * PART + SHARES] = 1.0f;
      }
      ++token;
      continue;
    }
    const IDX_T sequence = clrt_length(own[1], sequences - 1, AT(status));
    const IDX_T run = run_end(AT(step), token, last_token);
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
        if (!split) {
          tops[r] = AT(sinks)[head];
          ((float *)&sums[r])[0] = 1.0f;
        }
#endif
#if ALIBI
        slope[r] = AT(slopes)[head];
#endif
#if BIASES
        bias[r] = AT(biases) + head * distances;
#endif
      }
      const IDX_T first_page = key_begin / PAGE, count = (key_end + PAGE - 1) / PAGE - first_page;
      const IDX_T share = splits > 1 ? i_max((count + splits - 1) / splits, T_PAGES) : count;
      const IDX_T shares = (count + share - 1) / share;
      if (split >= shares) continue;
      const IDX_T last_page = first_page + i_min(count, (split + 1) * share);
      const IDX_T tiles = (rows + T_MR - 1) / T_MR * T_MR;
      for (IDX_T i = 0; i < tiles * S_DV / VW; ++i) result[i] = (F)(0.0f);
#if INT8_CACHE
      for (IDX_T m0 = 0; m0 < rows; m0 += T_MR)
        round_queries(rounded + m0 / T_MR * TILE_RECORDS, AT(q), queries + m0, rows - m0);
#endif
      for (IDX_T block = first_page + split * share; block < last_page; block += T_PAGES) {
        IDX_T pages = i_min(T_PAGES, last_page - block);
        // One entry more: the next page, for prefetching.
        __global const CACHE_T *heads_of[T_PAGES + 1] = {0};
        for (IDX_T p = 0; p <= pages; ++p) {
          __global const CACHE_T *page = 0;
          if (p < pages || (FEW && block + p < last_page)) {
            const IDX_T number = AT(table)[sequence * width + block + p];
            FIND_PAGE(page, number)
            if (!page) AT(status)[0] = number ? number : 1L << 31;
          }
          if (!page && p < pages) pages = 0;
          heads_of[p] = page ? page + kv_head * HEAD_ELEMENTS : heads_of[0];
        }
        if (!pages) break;
        for (IDX_T m0 = 0; m0 < rows; m0 += T_MR) {
#if !INT8_CACHE
          ROWS(QUERY)
#endif
          for (IDX_T p = 0; p < pages; ++p) {
            const IDX_T first_key = (block + p) * PAGE;
            __global const CACHE_T *const next =
                p + 1 < pages ? heads_of[p + 1] : heads_of[0] + KEY_ELEMENTS;
#if INT8_CACHE
            F dots[T_MR * PAGE / VW];
            FETCH(next, KEY_ELEMENTS)
            __global const uchar *const tile = rounded + m0 / T_MR * TILE_RECORDS;
            dot_rows((float *)dots, heads_of[p], tile, KEY_BLOCKS);
#if T_MR > S_DOTS
            dot_others((float *)dots + S_DOTS * PAGE, heads_of[p],
                       tile + S_DOTS * KEY_BLOCKS * ROW_RECORD, KEY_BLOCKS);
#endif
#endif
            for (IDX_T k = 0; k < PAGE; k += T_NK * VW) {
#if INT8_CACHE
              ROWS(TAKE_ROW)
#else
              __global const CACHE_T *keys = heads_of[p] + k;
              ROWS(CLEAR_ROW)
              for (IDX_T d = 0; d < S_D; ++d, keys += PAGE) {
                FETCH(next + d * PAGE + k, T_NK * VW)
                KEYS(LOAD_KEYS, 0)
                ROWS(SCORE_ROW)
              }
#endif
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
#if INT8_CACHE
            __global const half *const units =
                (__global const half *)VALUE_UNITS(heads_of[i / (PAGE / VW)]);
            weights[i] *= LOAD_WIDE(half, units + i % (PAGE / VW) * VW);
#endif
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
              // Memory after the last key is uninitialized.
              const IDX_T seen = i_min(PAGE, key_end - (block + p) * PAGE);
              __global const CACHE_T *values = heads_of[p] + KEY_ELEMENTS + c;
              __global const CACHE_T *const next =
                  heads_of[p + 1] + (p + 1 < pages ? KEY_ELEMENTS + c : c);
              for (IDX_T n = 0; n < seen; ++n, values += S_DV) {
                FETCH(next + n * S_DV, S_NV * VW)
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
        const IDX_T query = (row + r) / group * heads + first_head + (row + r) % group;
        __global float *const part = AT(parts) + (split * tokens * heads + query) * PART;
        __global float *const to = shares > 1 ? part : AT(y) + query * S_DV;
        const F factor = shares > 1 ? (F)(1.0f) : (F)(1.0f) / sum;
        for (IDX_T i = 0; i < S_DV / VW; ++i)
          STORE_F(to + i * VW, result[r * S_DV / VW + i] * factor);
        if (splits > 1) {
          part[TOP] = tops[r];
          part[SUM] = ((const float *)&sum)[0];
          part[SHARES] = (float)shares;
        }
      }
    }
    token = run;
  }
  if (splits == 1) return;
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  const int all = (int)(get_num_groups(0) * get_num_groups(1) * get_num_groups(2));
  if (atomic_inc((volatile __global int *)AT(arrived)) < all - 1) return;
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  AT(arrived)[0] = 0;
  join_parts(AT(y), AT(parts), tokens * heads);
}
