// ScatterND into y, which already holds x: combines the slice of `inner` contiguous elements of y
// at each of `tuples` index tuples (common/tuple.clh) with updates [tuples, inner] by REDUCTION
// (common/scatter.clh). Indices out of range are clamped and reported in `status`. No two
// work-items write one element, and repeated tuples apply in order.
//   scatter_nd      work-item: one element of every slice
//   scatter_nd_cpu  y is divided into parts of `share` elements, a slice into `pieces` of `span`
//                   elements. Work-group g of one work-item: piece g % pieces of the slices that
//                   start in part g / pieces
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
