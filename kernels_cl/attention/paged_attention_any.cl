// y = softmax(scale * q K^T) V with K and V in the pages of a KV cache, for any device, by online
// softmax. Parameters and options are described in common/paged.clh (y, q, scale, WINDOW, …) and
// common/pages.clh (page table, CACHE_T, PAGE).
//   q  float32 [tokens, heads * S_D], read;  y  float32 [tokens, heads * S_DV], written
// One work-item per (query head, token) computes S_DV elements of y.
#include "common/base.clh"
#include "common/paged.clh"
#include "common/index.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/online_softmax.clh"
#if INT8_CACHE
#include "common/query_levels.clh"
#define VALUE_AT(d) ((float)((__global const char *)page)[d] * unit)
#else
#define VALUE_AT(d) LOAD_AS(CACHE, page, d)
#endif

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
#if INT8_CACHE
  float units[KEY_BLOCKS];
  for (int d = 0; d < S_D; ++d) x[d] = query[d];
  for (int b = 0; b < KEY_BLOCKS; ++b)
    units[b] = query_levels(x + b * DOT_BLOCK, i_min(DOT_BLOCK, S_D - b * DOT_BLOCK)) * scale;
#else
  for (int d = 0; d < S_D; ++d) x[d] = query[d] * scale;
#endif
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
#if INT8_CACHE
    const int n = (int)(key % PAGE);
    for (int b = 0; b < KEY_BLOCKS; ++b) {
      __global const uchar *const block = page + b * WEIGHT_RECORD;
      float dot = 0.0f;
      for (int k = 0; k < DOT_BLOCK && b * DOT_BLOCK + k < S_D; ++k)
        dot += x[b * DOT_BLOCK + k] * (float)(dot_level(block, k, n) - ZERO_LEVEL);
      s += dot * units[b] * dot_column(block + LEVEL_BYTES, n);
    }
    const float unit = dot_column(page + KEY_ELEMENTS + PAGE * S_DV, n);
#else
    for (int d = 0; d < S_D; ++d) s = x[d] * LOAD_AS(CACHE, page, d * PAGE + key % PAGE) + s;
#endif
#if SOFTCAP
    s = softcap * c_tanh(s / softcap);
#endif
#if ALIBI
    s += AT(slopes)[head] * (float)(key - place);
#endif
#if BIASES
    s += AT(biases)[head * distances + i_min(place - key, distances - 1)];
#endif
    page += KEY_ELEMENTS + key % PAGE * S_DV;
    ADD_KEY(s, top, sum, result, S_DV, VALUE_AT)
  }
  for (int d = 0; d < S_DV; ++d) to[d] = result[d] / sum;
}
