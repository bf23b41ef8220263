// softmax(scale * Q K^T + mask) V: one work-item per (query, head, batch), one pass over the keys.
#include "common/base.clh"
#include "common/attention.clh"
#ifndef DATA_T
#define DATA_T float
#endif
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/storage.clh"

#include "common/online_key.clh"
#define VALUE_AT(d) LOAD(value, d)

#if MASK_BOOL
#define MASK_T uchar
#define MASK_VALUE(p, i) ((p)[i] ? 0.0f : -INFINITY)
#else
#define MASK_T DATA_T
#define MASK_VALUE(p, i) LOAD(p, i)
#endif
#if MASK
#define MASK_INPUT , IN(MASK_T, mask)
#else
#define MASK_INPUT
#endif

__kernel void fused_attention_any(OUT(DATA_T, y), IN(DATA_T, q), IN(DATA_T, k),
                                  IN(DATA_T, v) MASK_INPUT LENGTHS_INPUT, const IDX_T queries,
                                  const IDX_T key_count, const IDX_T heads, const IDX_T group,
                                  const IDX_T q_batch, const IDX_T q_head, const IDX_T q_step,
                                  const IDX_T k_batch, const IDX_T k_head, const IDX_T k_step,
                                  const IDX_T v_batch, const IDX_T v_head, const IDX_T v_step,
                                  const IDX_T mask_batch, const IDX_T mask_head,
                                  const IDX_T mask_query, const IDX_T mask_key,
                                  const float scale, const IDX_T left_window,
                                  const float softcap) {
  const IDX_T i = get_global_id(0);
  const IDX_T head = get_global_id(1);
  const IDX_T batch = get_global_id(2);
  if (i >= queries) return;
  const IDX_T kv_head = head / group;
  __global const DATA_T *query = AT(q) + batch * q_batch + head * q_head + i * q_step;
  __global const DATA_T *key = AT(k) + batch * k_batch + kv_head * k_head;
  __global const DATA_T *value = AT(v) + batch * v_batch + kv_head * v_head;
#if MASK
  __global const MASK_T *masks =
      AT(mask) + batch * mask_batch + head * mask_head + i * mask_query;
#endif
  float x[S_D], result[S_DV];
  for (int d = 0; d < S_D; ++d) x[d] = LOAD(query, d) * scale;
  for (int d = 0; d < S_DV; ++d) result[d] = 0.0f;
  // See fused_attention.cl for why the maximum starts at the lowest finite number.
  float top = -FLT_MAX, sum = 0.0f;
  const IDX_T keys = KEYS_OF(batch);
  IDX_T first_key = 0, key_end = keys;
#if CAUSAL
  const IDX_T place = FIRST_PLACE(keys) + i;
  key_end = i_min(keys, place + 1);
#if WINDOW
  first_key = i_max(0, place - left_window);
  key += first_key * k_step;
  value += first_key * v_step;
#endif
#endif
  for (IDX_T j = first_key; j < key_end; ++j, key += k_step, value += v_step) {
    float s = 0.0f;
    for (int d = 0; d < S_D; ++d) s = x[d] * LOAD(key, d) + s;
#if SOFTCAP
    s = softcap * c_tanh(s / softcap);
#endif
#if MASK
    s += MASK_VALUE(masks, j * mask_key);
#endif
    ADD_KEY(s, top, sum, result, S_DV, VALUE_AT)
  }
  const float of_no_keys = NAN_TO_ZERO || keys == 0 ? 0.0f : NAN;
  const float inverse = sum == 0.0f ? of_no_keys : 1.0f / sum;
  const IDX_T y_step = heads * S_DV;
  const IDX_T at = (batch * queries + i) * y_step + head * S_DV;
  for (int d = 0; d < S_DV; ++d) STORE(AT(y), at + d, result[d] * inverse);
}
