// Attention over pages (common/paged.clh), for GPUs. A work-group has one head of keys, and of the
// queries that share it those of `span` tokens, S_ROWS at a time: its work-items are keys of a block
// for scores, then columns of the values. Of the pages it has one of `splits` parts; where the pages
// are of several, paged_attention_join puts them together.
#ifndef S_ROWS
#define S_ROWS 4
#endif
#define ITEMS 64
#define BLOCK_PAGES (ITEMS / PAGE)
#define LEAST_PAGES BLOCK_PAGES
#include "common/base.clh"
#include "common/paged.clh"
#include "common/index.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/page_parts.clh"
#include "common/sub_group.clh"
#if LEVELS
#include "common/query_levels.clh"
#endif
// Work-items of a row where weights are made, and columns of a work-item.
#define SHARE (ITEMS / S_ROWS)
#define COLUMNS ((S_DV + ITEMS - 1) / ITEMS)
#define SYNC barrier(CLK_LOCAL_MEM_FENCE);

__kernel SUB_GROUP __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void paged_attention_gpu(ATTENTION, OUT(float, parts), const IDX_T span, const IDX_T splits) {
  // One weight more per row: rows begin in different banks.
  __local float queries[S_ROWS][S_D], weights[S_ROWS][ITEMS + 1], folded[S_ROWS][SHARE];
  __local float rescales[S_ROWS];
#if LEVELS
  __local float units[S_ROWS][KEY_BLOCKS];
#endif
  const IDX_T item = get_local_id(0), kv_head = get_global_id(0) / ITEMS, group = heads / kv_heads;
  const IDX_T split = get_global_id(2), first_head = kv_head * group;
  const IDX_T own_row = item / SHARE, share_item = item % SHARE;
  IDX_T token = get_global_id(1) * span, last_token = i_min(token + span, tokens);
  while (token < last_token) {
    __global const int *const own = AT(step) + token * STEP_TOKEN;
    if (own[1] < 0) {
      if (!split) {
        for (IDX_T c = item; c < group * S_DV; c += ITEMS)
          AT(y)[(token * heads + first_head) * S_DV + c] = 0.0f;
        if (splits > 1)
          for (IDX_T h = item; h < group; h += ITEMS)
            AT(parts)[(token * heads + first_head + h) * PART + SHARES] = 1.0f;
      }
      ++token;
      continue;
    }
    const IDX_T sequence = clrt_length(own[1], sequences - 1, AT(status));
    const IDX_T run = run_end(AT(step), token, last_token);
    for (IDX_T row = token * group; row < run * group; row += S_ROWS) {
      const IDX_T rows = i_min(S_ROWS, run * group - row);
      IDX_T places[S_ROWS], key_end = 0, key_begin = width * PAGE;
#pragma unroll
      for (int r = 0; r < S_ROWS; ++r) {
        // Idle rows are the last one again.
        const IDX_T t = (row + i_min(r, rows - 1)) / group;
        places[r] = clrt_length(AT(step)[t * STEP_TOKEN + 2], width * PAGE - 1, AT(status));
        key_end = i_max(key_end, places[r] + 1);
        key_begin = i_min(key_begin, WINDOW ? i_max(0, places[r] - left_window) : 0);
      }
      const IDX_T first_page = key_begin / PAGE, count = (key_end + PAGE - 1) / PAGE - first_page;
      const IDX_T share = splits > 1 ? i_max((count + splits - 1) / splits, LEAST_PAGES) : count;
      const IDX_T shares = (count + share - 1) / share;
      if (split >= shares) continue;
      const IDX_T last_page = first_page + i_min(count, (split + 1) * share);
#if LEVELS
      for (IDX_T i = item; i < S_ROWS * KEY_BLOCKS; i += ITEMS) {
        const IDX_T r = i / KEY_BLOCKS, d = i % KEY_BLOCKS * DOT_BLOCK, at = row + i_min(r, rows - 1);
        const int n = i_min(DOT_BLOCK, S_D - d);
        float x[DOT_BLOCK];
        for (int k = 0; k < n; ++k)
          x[k] = AT(q)[(at / group * heads + first_head + at % group) * S_D + d + k];
        units[r][i % KEY_BLOCKS] = query_levels(x, n) * scale;
        for (int k = 0; k < n; ++k) queries[r][d + k] = x[k];
      }
#else
      for (IDX_T i = item; i < S_ROWS * S_D; i += ITEMS) {
        const IDX_T at = row + i_min(i / S_D, rows - 1);
        queries[i / S_D][i % S_D] =
            AT(q)[(at / group * heads + first_head + at % group) * S_D + i % S_D] * scale;
      }
#endif
      const IDX_T own_head = first_head + (row + i_min(own_row, rows - 1)) % group;
      float top = -FLT_MAX, sum = 0.0f, result[S_ROWS][COLUMNS];
#if SINKS
      if (!split) {
        top = AT(sinks)[own_head];
        sum = share_item ? 0.0f : 1.0f;
      }
#endif
      for (int r = 0; r < S_ROWS; ++r)
        for (int j = 0; j < COLUMNS; ++j) result[r][j] = 0.0f;
      SYNC
      for (IDX_T block = first_page + split * share; block < last_page; block += BLOCK_PAGES) {
        __global const CACHE_T *pages[BLOCK_PAGES], *page = 0;
        for (int p = 0; p < BLOCK_PAGES; ++p) {
          pages[p] = 0;
          if (block + p >= last_page) continue;
          const IDX_T number = AT(table)[sequence * width + block + p];
          FIND_PAGE(pages[p], number)
          if (!pages[p]) AT(status)[0] = number ? number : 1L << 31;
          if (pages[p]) pages[p] += kv_head * HEAD_ELEMENTS;
          if (p == item / PAGE) page = pages[p];
        }
        const int n = (int)(item % PAGE);
        const IDX_T key = block * PAGE + item;
        const bool seen = page && key < key_end;
        float scores[S_ROWS];
        for (int r = 0; r < S_ROWS; ++r) scores[r] = 0.0f;
        if (seen) {
#if LEVELS
          for (int b = 0; b < KEY_BLOCKS; ++b) {
            __global const uchar *const levels = page + b * WEIGHT_RECORD;
            float dots[S_ROWS];
            for (int r = 0; r < S_ROWS; ++r) dots[r] = 0.0f;
            for (int k = 0; k < DOT_BLOCK && b * DOT_BLOCK + k < S_D; ++k) {
              const float level = (float)(dot_level(levels, k, n) - ZERO);
#pragma unroll
              for (int r = 0; r < S_ROWS; ++r) dots[r] += queries[r][b * DOT_BLOCK + k] * level;
            }
            const float unit = dot_column(levels + LEVEL_BYTES, n);
            for (int r = 0; r < S_ROWS; ++r) scores[r] += dots[r] * units[r][b] * unit;
          }
#else
          for (int d = 0; d < S_D; ++d) {
            const float element = LOAD_AS(CACHE, page, d * PAGE + n);
#pragma unroll
            for (int r = 0; r < S_ROWS; ++r) scores[r] = queries[r][d] * element + scores[r];
          }
#endif
        }
#pragma unroll
        for (int r = 0; r < S_ROWS; ++r) {
          float s = scores[r];
#if SOFTCAP
          s = softcap * c_tanh(s / softcap);
#endif
#if ALIBI || BIASES
          const IDX_T head = first_head + (row + i_min(r, rows - 1)) % group;
#endif
#if ALIBI
          s += AT(slopes)[head] * (float)(key - places[r]);
#endif
#if BIASES
          s += AT(biases)[head * distances + i_max(0, i_min(places[r] - key, distances - 1))];
#endif
          const bool wanted = seen && key <= places[r] && (!WINDOW || key >= places[r] - left_window);
          weights[r][item] = wanted ? s : -INFINITY;
        }
        SYNC
        float highest = -INFINITY;
        for (int i = share_item; i < ITEMS; i += SHARE) highest = fmax(highest, weights[own_row][i]);
        folded[own_row][share_item] = highest;
        SYNC
        const float before = top;
        for (int i = 0; i < SHARE; ++i) top = fmax(top, folded[own_row][i]);
        const float rescale = exp_below_0(before - top);
        sum *= rescale;
        if (!share_item) rescales[own_row] = rescale;
        for (int i = share_item; i < ITEMS; i += SHARE) {
          float weight = exp_below_0(weights[own_row][i] - top);
          sum += weight;
#if LEVELS
          __global const CACHE_T *const of = pages[i / PAGE];
          if (of && block * PAGE + i < key_end)
            weight *= dot_column(of + KEY_ELEMENTS + PAGE * S_DV, i % PAGE);
#endif
          weights[own_row][i] = weight;
        }
        SYNC
        for (int j = 0; j < COLUMNS; ++j) {
          const IDX_T c = item + j * ITEMS;
          if (c >= S_DV) continue;
#pragma unroll
          for (int r = 0; r < S_ROWS; ++r) result[r][j] *= rescales[r];
          for (int p = 0; p < BLOCK_PAGES; ++p) {
            if (!pages[p]) continue;
            // What lies behind the last key was never written.
            const int last = (int)i_min(PAGE, key_end - (block + p) * PAGE);
            __global const CACHE_T *const values = pages[p] + KEY_ELEMENTS + c;
            for (int k = 0; k < last; ++k) {
#if LEVELS
              const float value = (float)((__global const char *)values)[k * S_DV];
#else
              const float value = LOAD_AS(CACHE, values, k * S_DV);
#endif
#pragma unroll
              for (int r = 0; r < S_ROWS; ++r)
                result[r][j] = weights[r][p * PAGE + k] * value + result[r][j];
            }
          }
        }
        SYNC
      }
      folded[own_row][share_item] = sum;
      SYNC
#pragma unroll
      for (int r = 0; r < S_ROWS; ++r) {
        if (r >= rows) continue;
        const IDX_T query = (row + r) / group * heads + first_head + (row + r) % group;
        __global float *const part = AT(parts) + (split * tokens * heads + query) * PART;
        __global float *const to = shares > 1 ? part : AT(y) + query * S_DV;
        float all = 0.0f;
        for (int i = 0; i < SHARE; ++i) all += folded[r][i];
        const float factor = shares > 1 ? 1.0f : 1.0f / all;
        for (int j = 0; j < COLUMNS; ++j)
          if (item + j * ITEMS < S_DV) to[item + j * ITEMS] = result[r][j] * factor;
        if (splits > 1 && own_row == r && !share_item) {
          part[TOP] = top;
          part[SUM] = all;
          part[SHARES] = (float)shares;
        }
      }
      SYNC
    }
    token = run;
  }
}

// Work-item (column, query).
__kernel void paged_attention_join(OUT(float, y), IN(float, parts), const IDX_T queries) {
  const IDX_T c = get_global_id(0), query = get_global_id(1), step = queries * PART;
  if (c >= S_DV) return;
  __global const float *const own = AT(parts) + query * PART;
  const IDX_T shares = (IDX_T)own[SHARES];
  if (shares == 1) return;
  float top = own[TOP], sum = 0.0f, result = 0.0f;
  for (IDX_T s = 1; s < shares; ++s) top = fmax(top, own[s * step + TOP]);
  for (IDX_T s = 0; s < shares; ++s) {
    const float weight = exp_below_0(own[s * step + TOP] - top);
    sum += weight * own[s * step + SUM];
    result += weight * own[s * step + c];
  }
  AT(y)[query * S_DV + c] = result / sum;
}
