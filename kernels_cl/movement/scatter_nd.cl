// ScatterND into y, which already holds x: combines the slice of y at each index tuple with a row
// of updates by REDUCTION (common/scatter.clh).
//   indices  read: INDEX_T [tuples, width]; dims and strides of the indexed axes are n0 to n5 and
//            s0 to s5 (common/tuple.clh). An index out of range is clamped and reported in `status`
//   updates  read: DATA_T [tuples, inner];  y  read and written: DATA_T, slices of `inner`
//            contiguous elements
// No two work-items write one element, so repeated tuples apply in order.
//   scatter_nd      one work-item per element of a slice, for all tuples in turn
//   scatter_nd_cpu  y is divided into parts of `share` elements, and a slice into `pieces` pieces
//                   of `span` elements. Work-group g, of one work-item, updates piece g % pieces of
//                   the slices that start in part g / pieces
#include "common/base.clh"
#include "common/index.clh"
#include "common/scatter.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#endif
#include "common/tuple.clh"

__kernel void scatter_nd(IN(INDEX_T, indices), IN(DATA_T, updates), INOUT(DATA_T, y),
                         OUT(long, status), const IDX_T inner, const IDX_T tuples, TUPLE_PARAMS) {
  const IDX_T r = get_global_id(0);
  if (r >= inner) return;
  for (IDX_T t = 0; t < tuples; ++t) {
    const IDX_T at = clrt_tuple(AT(indices) + t * width, AT(status), TUPLE_ARGS) + r;
    AT(y)[at] = COMBINE(AT(y)[at], AT(updates)[t * inner + r]);
  }
}

#define LANES 8
typedef CAT(DATA_T, LANES) __attribute__((aligned(sizeof(DATA_T)))) V;

__kernel SINGLE_ITEM
void scatter_nd_cpu(IN(INDEX_T, indices), IN(DATA_T, updates), INOUT(DATA_T, y), OUT(long, status),
                    const IDX_T inner, const IDX_T tuples, const IDX_T pieces, const IDX_T span,
                    const IDX_T share, TUPLE_PARAMS) {
  const IDX_T part = get_group_id(0) / pieces, begin = (get_group_id(0) - part * pieces) * span;
  const IDX_T low = part * share, end = min(begin + span, inner);
  for (IDX_T t = 0; t < tuples; ++t) {
    const IDX_T at = clrt_tuple(AT(indices) + t * width, AT(status), TUPLE_ARGS);
    if (at < low || at - low >= share) continue;
    __global DATA_T *const to = AT(y) + at;
    __global const DATA_T *const from = AT(updates) + t * inner;
    IDX_T r = begin;
    for (; r + LANES <= end; r += LANES) {
      const V old = *(__global const V *)(to + r), update = *(__global const V *)(from + r);
      *(__global V *)(to + r) = COMBINE(old, update);
    }
    for (; r < end; ++r) to[r] = COMBINE(to[r], from[r]);
  }
}
