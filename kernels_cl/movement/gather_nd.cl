// GatherND: y[t, :] = x[batch of t, indices[t], :]: slices of `inner` contiguous elements of x, for
// `tuples` tuples of indices (common/tuple.clh), per_batch of them per batch of `batch` elements of
// x. Indices out of range are clamped and reported in `status`. DATA_T is an unsigned integer type
// of the elements' size. Work-item (element of the slice, t).
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
