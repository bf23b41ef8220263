// ScatterND into y, which already holds x: a work-item takes one element of every slice, so that
// no two work-items write one element and tuples that repeat are taken in order.
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
