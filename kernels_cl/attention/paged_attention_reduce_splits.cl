// Merges the partial results of paged_attention_gpu.cl for sequences whose pages are split among
// work-groups: rescales them by their maximum scores and adds them up.
//   parts  read: float32 [split][query][PART], per split the weighted sums of value columns, the
//          maximum score, the sum of weights and the number of splits (common/paged_partials.clh)
//   y      written: float32 [queries, S_DV]; rows of queries with a single split are left unchanged
// A query is token * heads + head. One work-item per (column of S_DV, query).
#include "common/base.clh"
#include "common/pages.clh"
#include "common/math.clh"
#include "common/paged_partials.clh"

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
