// y = softmax(scale * Q K^T + mask) V for any dtype and device: one pass over the keys by online
// softmax, computed in float32.
//   y        written: DATA_T [batch, queries, heads, S_DV]
//   q, k, v, mask, heads, group, key_count, queries, scale  parameters described in
//                      common/attention_scalar.clh
//   DATA_T, STORAGE  type and storage of q, k, v and y (common/storage.clh)
//   S_D, S_DV, MASK, CAUSAL, WINDOW, SOFTCAP, …  options described in common/attention.clh
// One work-item per (query, head, batch) computes the S_DV output elements of one query and head.
#include "common/base.clh"
#include "common/attention.clh"
#ifndef DATA_T
#define DATA_T float
#endif
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/storage.clh"

#include "common/attention_scalar.clh"
#include "common/online_softmax.clh"
#define VALUE_AT(d) LOAD(value, d)

__kernel void fused_attention_any(OUT(DATA_T, y), ATTENTION_INPUTS) {
  const IDX_T i = get_global_id(0);
  const IDX_T head = get_global_id(1);
  const IDX_T batch = get_global_id(2);
  if (i >= queries) return;
  const IDX_T kv_head = head / group;
  __global const DATA_T *query = AT(q) + batch * q_batch + head * q_head + i * q_step;
  __global const DATA_T *key = AT(k) + batch * k_batch + kv_head * k_head;
  __global const DATA_T *value = AT(v) + batch * v_batch + kv_head * v_head;
  const IDX_T mask_at = batch * mask_batch + head * mask_head + i * mask_query;
  float x[S_D], result[S_DV];
  for (int d = 0; d < S_D; ++d) x[d] = LOAD(query, d) * scale;
  for (int d = 0; d < S_DV; ++d) result[d] = 0.0f;
  // See fused_attention.cl for why the maximum starts at the lowest finite number.
  float top = -FLT_MAX, sum = 0.0f;
  const IDX_T keys = KEYS_OF(batch);
  const IDX_T place = FIRST_PLACE(keys) + i;
  const IDX_T first_key = FIRST_KEY(place), key_end = KEY_END(place, keys);
  key += first_key * k_step;
  value += first_key * v_step;
  for (IDX_T j = first_key; j < key_end; ++j, key += k_step, value += v_step) {
    float s = 0.0f;
    for (int d = 0; d < S_D; ++d) s = x[d] * LOAD(key, d) + s;
    s = WITH_MASK(CAPPED(s), mask_at + j * mask_key);
    ADD_KEY(s, top, sum, result, S_DV, VALUE_AT)
  }
  const float inverse = INVERSE_OF(sum, keys);
  const IDX_T y_step = heads * S_DV;
  const IDX_T at = (batch * queries + i) * y_step + head * S_DV;
  for (int d = 0; d < S_DV; ++d) STORE(AT(y), at + d, result[d] * inverse);
}
