// y = softmax(scale * q K^T) V with K and V in the pages of a KV cache, for GPUs. Operands and
// options: common/paged.clh and common/pages.clh.
//   q      read: float32 [tokens, heads * S_D];  y  written: float32 [tokens, heads * S_DV]
//   parts  written if the pages of a sequence are split: float32 [splits][tokens * heads][PART]
//          partial results (common/paged_partials.clh), which paged_attention_reduce_splits.cl
//          merges into y
// One work-group of T_ITEMS work-items per (KV head and the query heads that share it, `span`
// tokens, split). The pages of a sequence are divided into up to `splits` splits, in order. A
// work-group processes S_ROWS queries of one sequence at a time; for BLOCK keys at a time it
// computes
//   1. scores: a work-item has four adjacent keys and every SLICES-th of their elements; partial
//     sums are added in local memory;
//   2. softmax weights: SHARE work-items per row;
//   3. weighted sums of values: a work-item has four adjacent columns and every VALUE_SLICES-th
//     key; partial sums are added after the last block.
//   T_HELD  elements that a work-item loads before it uses the first
#ifndef S_ROWS
#define S_ROWS 4
#endif
#ifndef T_ITEMS
#define T_ITEMS 128
#define T_HELD 16
#endif
#define ITEMS T_ITEMS
#define BLOCK 64
#define BLOCK_PAGES 2
#define SLABS 6
#define KEEP(s) slabs[s] = AT(slab##s) + layer, counts[s] = n##s;
#define LEAST_PAGES BLOCK_PAGES
#include "common/base.clh"
#include "common/paged.clh"
#include "common/index.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/paged_partials.clh"
#include "common/sub_group.clh"
#if INT8_CACHE
#include "common/query_levels.clh"
#endif
#define HELD (T_HELD / 4)
#define KEY_FOURS (BLOCK / 4)
#define SLICES (ITEMS / KEY_FOURS)
#define VALUE_FOURS (S_DV / 4)
#define VALUE_SLICES (ITEMS / VALUE_FOURS)
// Work-items per row that compute weights; only BLOCK of them have a key.
#define SHARE (ITEMS / S_ROWS)
#define SHARERS i_min(SHARE, BLOCK)
#define SYNC barrier(CLK_LOCAL_MEM_FENCE);
// Larger loops are not unrolled: loads hoisted to the front would exhaust the registers.
#define ROLLED _Pragma("unroll 1")
#define UNROLLED(u, count) _Pragma("unroll") for (int u = 0; u < (count); ++u)

// Number of vector loads that a work-item issues before it uses the first, at most all that it has.
// A load of keys is one element (INT8_CACHE: four) of each of its four keys; a load of values, four
// columns of a key.
#define KEYS_HELD i_min(HELD, (STEPS + SLICES - 1) / SLICES)
#define VALUES_HELD i_min(HELD, (BLOCK + VALUE_SLICES - 1) / VALUE_SLICES)

// Loads four adjacent elements; pages and their heads are vector-aligned.
#define FOUR_AS(storage, p) CAT(four_, storage)(p)
#define four_plain(p) (*(__global const float4 *)(p))
#define four_half(p) vload_half4(0, p)
#define four_bfloat16(p) as_float4(convert_uint4(*(__global const ushort4 *)(p)) << 16)

#if INT8_CACHE
// Groups of four elements of a head; a word holds four keys' int8 values.
#define STEPS (S_D / 4)
#define KEYS_T uint4
#define BLOCK_STEPS (DOT_BLOCK / 4)
#define RECORD_OF(page, step) ((page) + (step) / BLOCK_STEPS * WEIGHT_RECORD)
#define KEYS(page, step, n) \
  (*(__global const uint4 *)(RECORD_OF(page, step) + ((step) % BLOCK_STEPS * DOT_WIDTH + (n)) * 4))
#define VALUES(at) convert_float4(*(__global const char4 *)(at))
#else
#define STEPS S_D
#define KEYS_T float4
#define KEYS(page, step, n) FOUR_AS(CACHE, (page) + (step) * PAGE + (n))
#define VALUES(at) FOUR_AS(CACHE, at)
#endif

__kernel SUB_GROUP __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void paged_attention_gpu(ATTENTION, OUT(float, parts), const IDX_T span, const IDX_T splits) {
  // Scratch: scores [SLICES, S_ROWS, BLOCK], then results [S_ROWS, ITEMS, 4], the same size.
  __local __attribute__((aligned(16))) float sums[S_ROWS * ITEMS * 4];
  // One weight of padding per row, so that rows start in different banks.
  __local float queries[S_ROWS][S_D], weights[S_ROWS][BLOCK + 1], folded[S_ROWS][SHARE];
  __local float rescales[S_ROWS];
  // Slab pointers in local memory: registers do not suffice.
  __global const CACHE_T *__local slabs[SLABS], *__local pages[BLOCK_PAGES];
  __local IDX_T counts[SLABS];
#if INT8_CACHE
  __local float units[S_ROWS][KEY_BLOCKS];
#endif
  const IDX_T item = get_local_id(0), kv_head = get_global_id(0) / ITEMS, group = heads / kv_heads;
  const IDX_T split = get_global_id(2), first_head = kv_head * group;
  const IDX_T own_row = item / SHARE, share_item = item % SHARE;
  // Always 0, but read from local memory per block: compilers otherwise keep an address per
  // element.
  __local int start;
  if (!item) {
    start = 0;
    KEEP(0) KEEP(1) KEEP(2) KEEP(3) KEEP(4) KEEP(5)
  }
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
      IDX_T own_place = 0, key_end = 0, key_begin = width * PAGE;
      ROLLED
      for (int r = 0; r < S_ROWS; ++r) {
        // Idle rows repeat the last one.
        const IDX_T t = (row + i_min(r, rows - 1)) / group;
        const IDX_T place = clrt_length(AT(step)[t * STEP_TOKEN + 2], width * PAGE - 1, AT(status));
        key_end = i_max(key_end, place + 1);
        key_begin = i_min(key_begin, WINDOW ? i_max(0, place - left_window) : 0);
        if (r == own_row) own_place = place;
      }
      const IDX_T first_page = key_begin / PAGE, count = (key_end + PAGE - 1) / PAGE - first_page;
      const IDX_T share = splits > 1 ? i_max((count + splits - 1) / splits, LEAST_PAGES) : count;
      const IDX_T shares = (count + share - 1) / share;
      if (split >= shares) continue;
      const IDX_T last_page = first_page + i_min(count, (split + 1) * share);
#if INT8_CACHE
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
      float top = -FLT_MAX, sum = 0.0f;
      float4 result[S_ROWS];
#if SINKS
      if (!split) {
        top = AT(sinks)[own_head];
        sum = share_item ? 0.0f : 1.0f;
      }
#endif
      UNROLLED(r, S_ROWS) result[r] = (float4)(0.0f);
      SYNC
      for (IDX_T block = first_page + split * share; block < last_page; block += BLOCK_PAGES) {
        // Each work-item looks up one page.
        if (item < BLOCK_PAGES) {
          __global const CACHE_T *page = 0;
          if (block + item < last_page) {
            const IDX_T number = AT(table)[sequence * width + block + item];
            IDX_T at = number;
            for (int s = 0; s < SLABS; ++s) {
              if (at >= 0 && at < counts[s]) page = slabs[s] + (size_t)at * pitch;
              at -= counts[s];
            }
            if (!page) AT(status)[0] = number ? number : 1L << 31;
          }
          pages[item] = page ? page + kv_head * HEAD_ELEMENTS : 0;
        }
        SYNC
        __global const CACHE_T *const page0 = pages[0], *const page1 = pages[1] ? pages[1] : page0;
        // Keys after the last one are uninitialized; after a missing page there is none.
        const int behind = !page0 ? 0 : pages[1] ? BLOCK : PAGE;
        const int seen = i_min(behind, (int)(key_end - block * PAGE));
        const int here = (int)item + start, slice = here / KEY_FOURS, four = here % KEY_FOURS * 4;
        const int value_slice = here / VALUE_FOURS;
        const IDX_T own_row = here / SHARE, share_item = here % SHARE;
        float4 scores[S_ROWS];
        UNROLLED(r, S_ROWS) scores[r] = (float4)(0.0f);
        if (seen > 0) {
          // Reads of unseen keys are clamped to the last seen ones; their scores are discarded
          // below.
          const int at = i_min(four, (seen - 1) / 4 * 4), n = at % PAGE;
          __global const CACHE_T *const page = at < PAGE ? page0 : page1;
          ROLLED
          for (int d0 = slice; d0 < STEPS; d0 += KEYS_HELD * SLICES) {
            KEYS_T keys[KEYS_HELD];
            UNROLLED(u, KEYS_HELD) keys[u] = KEYS(page, i_min(d0 + u * SLICES, STEPS - 1), n);
            UNROLLED(u, KEYS_HELD) {
              const int d = d0 + u * SLICES;
              if (STEPS % (KEYS_HELD * SLICES) && d >= STEPS) continue;
#if INT8_CACHE
              const float4 unit = vload_half4(
                  0, (__global const half *)(RECORD_OF(page, d) + LEVEL_BYTES) + n);
              float4 dots[S_ROWS];
              UNROLLED(r, S_ROWS) dots[r] = (float4)(0.0f);
              UNROLLED(k, 4) {
                const float4 levels = convert_float4(convert_int4(keys[u] >> 8 * k & 255) - ZERO_LEVEL);
                UNROLLED(r, S_ROWS) dots[r] += queries[r][4 * d + k] * levels;
              }
              UNROLLED(r, S_ROWS) scores[r] += dots[r] * (units[r][d / BLOCK_STEPS] * unit);
#else
              UNROLLED(r, S_ROWS) scores[r] += queries[r][d] * keys[u];
#endif
            }
          }
        }
        UNROLLED(r, S_ROWS)
        *(__local float4 *)(sums + (slice * S_ROWS + r) * BLOCK + four) = scores[r];
        SYNC
        float highest = -INFINITY;
        ROLLED
        for (int k = share_item; k < BLOCK; k += SHARE) {
          float s = 0.0f;
          for (int p = 0; p < SLICES; ++p) s += sums[(p * S_ROWS + own_row) * BLOCK + k];
          const IDX_T key = block * PAGE + k;
#if SOFTCAP
          s = softcap * c_tanh(s / softcap);
#endif
#if ALIBI
          s += AT(slopes)[own_head] * (float)(key - own_place);
#endif
#if BIASES
          s += AT(biases)[own_head * distances + i_max(0, i_min(own_place - key, distances - 1))];
#endif
          const bool wanted = k < seen && key <= own_place && (!WINDOW || key >= own_place - left_window);
          s = wanted ? s : -INFINITY;
          weights[own_row][k] = s;
          highest = fmax(highest, s);
        }
        folded[own_row][share_item] = highest;
        SYNC
        const float before = top;
        for (int i = 0; i < SHARERS; ++i) top = fmax(top, folded[own_row][i]);
        const float rescale = exp_below_0(before - top);
        sum *= rescale;
        if (!share_item) rescales[own_row] = rescale;
        ROLLED
        for (int k = share_item; k < BLOCK; k += SHARE) {
          float weight = exp_below_0(weights[own_row][k] - top);
          sum += weight;
#if INT8_CACHE
          if (k < seen)
            weight *= dot_column((k < PAGE ? page0 : page1) + KEY_ELEMENTS + PAGE * S_DV,
                                 k % PAGE);
#endif
          weights[own_row][k] = weight;
        }
        SYNC
        UNROLLED(r, S_ROWS) result[r] *= rescales[r];
        ROLLED
        for (int k0 = value_slice < VALUE_SLICES ? value_slice : BLOCK; k0 < seen;
             k0 += VALUES_HELD * VALUE_SLICES) {
          float4 values[VALUES_HELD];
          UNROLLED(u, VALUES_HELD) {
            const int k = i_min(k0 + u * VALUE_SLICES, seen - 1);
            __global const CACHE_T *const page = k < PAGE ? page0 : page1;
            values[u] = VALUES(page + KEY_ELEMENTS + k % PAGE * S_DV + here % VALUE_FOURS * 4);
          }
          UNROLLED(u, VALUES_HELD) {
            const int k = k0 + u * VALUE_SLICES;
            if (k >= seen) values[u] = (float4)(0.0f);
            UNROLLED(r, S_ROWS) result[r] += weights[r][i_min(k, BLOCK - 1)] * values[u];
          }
        }
        SYNC
      }
      UNROLLED(r, S_ROWS) *(__local float4 *)(sums + (r * ITEMS + item) * 4) = result[r];
      folded[own_row][share_item] = sum;
      SYNC
      if (!share_item) {
        float all = 0.0f;
        for (int i = 0; i < SHARE; ++i) all += folded[own_row][i];
        rescales[own_row] = shares > 1 ? 1.0f : 1.0f / all;
        if (splits > 1 && own_row < rows) {
          const IDX_T query = (row + own_row) / group * heads + own_head;
          __global float *const part = AT(parts) + (split * tokens * heads + query) * PART;
          part[TOP] = top;
          part[SUM] = all;
          part[SHARES] = (float)shares;
        }
      }
      SYNC
      for (IDX_T i = item; i < rows * S_DV; i += ITEMS) {
        const IDX_T r = i / S_DV, c = i % S_DV;
        const IDX_T query = (row + r) / group * heads + first_head + (row + r) % group;
        float all = 0.0f;
        for (int p = 0; p < VALUE_SLICES; ++p) all += sums[(r * ITEMS + p * VALUE_FOURS) * 4 + c];
        if (shares > 1) AT(parts)[(split * tokens * heads + query) * PART + c] = all;
        else AT(y)[query * S_DV + c] = all * rescales[r];
      }
      SYNC
    }
    token = run;
  }
}
