// Splits the joint projection x into heads of Q, K and V; applies rotary position embedding to Q
// and K; writes Q to q, and K and V to a paged KV cache (common/pages.clh). Heads of K and V of a
// token without a sequence are not cached.
//   x  read: float32 [tokens, (heads + 2 kv_heads) * S_D]: heads of Q, then of K, then of V
//   q  written: float32 [tokens, heads * S_D];  S_D  elements per head
//   ROTARY       1: the first `turned` elements of a head are rotated by cosines and sines, float32
//                [tokens, turned / 2]: element i together with i + turned / 2, or with INTERLEAVED
//                2 i with 2 i + 1
//   QUERIES      0: x has no heads of Q (heads is 0), and there is no parameter q
//   NORM         1: heads of Q and K are first RMS-normalized (epsilon) and multiplied by q_scale
//                and k_scale, float32 [S_D]
//   INT8_CACHE   1: the cache has int8 elements with scales (common/pages.clh)
//   T_ITEMS      work-items per work-group
// One work-group per (head, token), whose T_ITEMS work-items share the head; on CPU devices
// (T_ITEMS 1) one work-item per token, with all heads.
#include "common/base.clh"
#include "common/pages.clh"
#include "common/index.clh"
#ifndef ROTARY
#define ROTARY 1
#define INTERLEAVED 0
#define NORM 0
#define QUERIES 1
#endif
#if ROTARY
#define ROTARY_INPUTS , IN(float, cosines), IN(float, sines), const IDX_T turned
#else
#define ROTARY_INPUTS
#endif
#if QUERIES
#define QUERIES_OUTPUT OUT(float, q),
#else
#define QUERIES_OUTPUT
#endif
#if NORM
#define NORM_INPUTS , IN(float, q_scale), IN(float, k_scale), const float epsilon
#else
#define NORM_INPUTS
#endif

#ifndef T_ITEMS
#define T_ITEMS 1
#endif
// Scratch of a head: private arrays are registers on CPUs only.
#if T_ITEMS == 1
#define HEAD_MEMORY __private
#define SYNC
#else
#define HEAD_MEMORY __local
#define SYNC barrier(CLK_LOCAL_MEM_FENCE);
#endif
#define LANE ((int)get_local_id(0))
#define EACH_OF_LANE(d, count) for (int d = LANE; d < (count); d += T_ITEMS)

#if INT8_CACHE
// Stores the int8 scale of the `count` elements of x, their largest magnitude / 127, as half
// number n of `scales`. Returns 1 / scale, or 0 if the scale is 0.
static inline float keep_scale(__global uchar *scales, const IDX_T n,
                               HEAD_MEMORY const float *x, const int count) {
  float most = 0.0f;
  for (int d = 0; d < count; ++d) {
    const float size = x[d] < 0.0f ? -x[d] : x[d];
    most = size > most || size != size ? size : most;
  }
  vstore_half(most / 127.0f, n, (__global half *)scales);
  const float unit = vload_half(n, (__global const half *)scales);
  return unit > 0.0f ? 1.0f / unit : 0.0f;
}

// Returns x * inverse rounded to the nearest integer, clamped to -127..127. Adding 1.5 * 2^23 does
// the rounding: the integer is then in the lowest bits of the float.
static inline int level_of(const float x, const float inverse) {
#pragma OPENCL FP_CONTRACT OFF
  const float scaled = x * inverse;
  const int level = as_int(scaled + 12582912.0f) - 0x4b400000;
  return level < -127 ? -127 : level > 127 ? 127 : level;
}

static inline void keep_key(__global uchar *page, const int n, HEAD_MEMORY const float *x) {
  EACH_OF_LANE(b, KEY_BLOCKS) {
    __global uchar *const to = page + b * WEIGHT_RECORD;
    const int first = b * DOT_BLOCK, count = S_D - first < DOT_BLOCK ? S_D - first : DOT_BLOCK;
    const float inverse = keep_scale(to + LEVEL_BYTES, n, x + first, count);
    for (int k = 0; k < DOT_BLOCK; ++k)
      to[(k / 4 * DOT_WIDTH + n) * 4 + k % 4] =
          (uchar)(ZERO_LEVEL + (k < count ? level_of(x[first + k], inverse) : 0));
  }
}

static inline void keep_value(__global uchar *to, const int n, HEAD_MEMORY const float *x,
                              const float inverse) {
  EACH_OF_LANE(d, S_DV) to[n * S_DV + d] = (uchar)level_of(x[d], inverse);
}
#else
static inline void keep_key(__global CACHE_T *to, const int n, HEAD_MEMORY const float *x) {
  EACH_OF_LANE(d, S_D) STORE_AS(CACHE, to, d * PAGE + n, x[d]);
}

static inline void keep_value(__global CACHE_T *to, const int n, HEAD_MEMORY const float *x,
                              const float inverse) {
  EACH_OF_LANE(d, S_DV) STORE_AS(CACHE, to, n * S_DV + d, x[d]);
}
#endif

static inline float inverse_size(HEAD_MEMORY const float *x, const float epsilon) {
  float sum = 0.0f;
  for (int d = 0; d < S_D; ++d) sum += x[d] * x[d];
  return 1.0f / sqrt(sum / S_D + epsilon);
}

static inline void turn_head(HEAD_MEMORY float *x, __global const float *cosines,
                             __global const float *sines, const int pairs) {
  EACH_OF_LANE(i, pairs) {
    const int first = INTERLEAVED ? 2 * i : i, second = INTERLEAVED ? first + 1 : i + pairs;
    const float a = x[first], b = x[second];
    x[first] = a * cosines[i] - b * sines[i];
    x[second] = b * cosines[i] + a * sines[i];
  }
}

__kernel __attribute__((reqd_work_group_size(T_ITEMS, 1, 1)))
void rotate_and_cache(QUERIES_OUTPUT IN(float, x), PAGES(INOUT) ROTARY_INPUTS NORM_INPUTS) {
  const IDX_T token = get_global_id(1);
  __global const int *const own = AT(step) + token * STEP_TOKEN;
  const IDX_T all = heads + 2 * kv_heads;
  // A token without a sequence has no cache position: its heads of K and V are not stored.
  const IDX_T sequence = own[1] < 0 ? 0 : clrt_length(own[1], sequences - 1, AT(status));
  const IDX_T place = clrt_length(own[2], width * PAGE - 1, AT(status));
  __global CACHE_T *page = 0;
  if (own[1] >= 0) {
    const IDX_T number = AT(table)[sequence * width + place / PAGE];
    FIND_PAGE(page, number)
    if (!page) AT(status)[0] = number ? number : 1L << 31;
  }
  HEAD_MEMORY float h[S_D], scale[1];
  const int n = (int)(place % PAGE);
  const IDX_T groups = get_global_size(0) / T_ITEMS;
  // All heads take the same barriers: PoCL drops some barriers inside branches.
  for (IDX_T head = get_global_id(0) / T_ITEMS; head < all; head += groups) {
    const int is_value = head >= heads + kv_heads;
    __global const float *const from = AT(x) + (token * all + head) * S_D;
    SYNC
    EACH_OF_LANE(d, S_D) h[d] = from[d];
    SYNC
#if NORM
    const float size = inverse_size(h, epsilon);
    SYNC
    __global const float *const scales = head < heads ? AT(q_scale) : AT(k_scale);
    if (!is_value) EACH_OF_LANE(d, S_D) h[d] = h[d] * size * scales[d];
    SYNC
#endif
#if ROTARY
    const IDX_T pairs = turned / 2;
    if (!is_value) turn_head(h, AT(cosines) + token * pairs, AT(sines) + token * pairs, pairs);
    SYNC
#endif
#if QUERIES
    if (head < heads) {
      __global float *const to = AT(q) + (token * heads + head) * S_D;
      EACH_OF_LANE(d, S_D) to[d] = h[d];
    }
#endif
    __global CACHE_T *const values =
        page + (is_value ? head - heads - kv_heads : 0) * HEAD_ELEMENTS + KEY_ELEMENTS;
    float inverse = 0.0f;
#if INT8_CACHE
    const int kept = is_value && page;
    if (LANE == 0) scale[0] = kept ? keep_scale(values + PAGE * S_DV, n, h, S_DV) : 0.0f;
    SYNC
    inverse = scale[0];
#endif
    if (head >= heads && page) {
      if (is_value) keep_value(values, n, h, inverse);
      else keep_key(page + (head - heads) * HEAD_ELEMENTS, n, h);
    }
  }
}
