// Merges the partial results of an attention whose keys are split among work-groups
// (fused_attention_gpu.cl with SPLIT_KEYS): rescales them by their maximum scores and adds them up.
//   sums  read: float32 [batch, KV head, row, part, S_DV + 2]: of each of `parts` partial results
//         the S_DV weighted sums of value columns, the maximum score and the sum of weights. A row
//         is query * group + the query head's index among the `group` query heads that share a KV
//         head
//   y     written: DATA_T [batch, queries, heads, S_DV], the attention output
//   key_count  number of keys; S_DV  elements per value; NAN_TO_ZERO: see common/attention.clh
// One work-item per (column of S_DV, row, batch * KV heads + KV head) writes one element of y.
#include "common/base.clh"
#include "common/attention.clh"
#ifndef DATA_T
#define DATA_T float
#endif
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/storage.clh"

#include "common/attention_scalar.clh"

__kernel void attention_joined(OUT(DATA_T, y), IN(float, sums), const IDX_T parts,
                               const IDX_T queries, const IDX_T key_count, const IDX_T heads,
                               const IDX_T group) {
  const IDX_T d = get_global_id(0), row = get_global_id(1), outer = get_global_id(2);
  const IDX_T rows = queries * group, kv_heads = heads / group;
  if (d >= S_DV || row >= rows) return;
  const IDX_T step = S_DV + 2;
  __global const float *const from = AT(sums) + (outer * rows + row) * parts * step;
  float top = -FLT_MAX, sum = 0.0f, result = 0.0f;
  for (IDX_T part = 0; part < parts; ++part) {
    const float most = from[part * step + S_DV];
    top = most > top ? most : top;
  }
  for (IDX_T part = 0; part < parts; ++part) {
    const float weight = exp_below_0(from[part * step + S_DV] - top);
    sum += from[part * step + S_DV + 1] * weight;
    result += from[part * step + d] * weight;
  }
  const IDX_T batch = outer / kv_heads, head = outer % kv_heads * group + row % group;
  const IDX_T at = ((batch * queries + row / group) * heads + head) * S_DV + d;
  STORE(AT(y), at, result * INVERSE_OF(sum, key_count));
}
