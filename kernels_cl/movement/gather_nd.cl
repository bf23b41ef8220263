// GatherND: row t of y is the slice of x at index tuple t.
//   x  read: DATA_T, in batches of `batch` elements; a slice is `inner` contiguous elements
//   indices  read: INDEX_T [tuples, width], `per_batch` tuples for each batch; dims and strides of
//            the indexed axes are n0 to n5 and s0 to s5 (common/tuple.clh). An index out of range
//            is clamped and reported in `status`
//   y  written: DATA_T [tuples, inner]. DATA_T is an unsigned integer type of the elements' size.
// One work-item per (element of the slice, t).
#include "common/base.clh"
#include "common/index.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#endif
#include "common/tuple.clh"

__kernel void gather_nd(IN(DATA_T, x), IN(INDEX_T, indices), OUT(DATA_T, y), OUT(long, status),
                        const IDX_T inner, const IDX_T tuples, const IDX_T per_batch,
                        const IDX_T batch, TUPLE_PARAMS) {
  GLOBAL_XY(r, t, inner)
  if (r >= inner || (uint)t >= (uint)tuples) return;
  const IDX_T at = clrt_tuple(AT(indices) + t * width, AT(status), TUPLE_ARGS);
  AT(y)[t * inner + r] = AT(x)[(t / per_batch) * batch + at + r];
}
