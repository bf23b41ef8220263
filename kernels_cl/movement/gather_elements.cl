// GatherElements: y[.., i, ..] = x[.., indices[.., i, ..], ..].
//   x  read: DATA_T, strides s0 to s5 in elements, where that of the gathered axis is 0; this axis
//      has size n and stride `step`
//   indices  read: INDEX_T [d0, …, d5], contiguous; one out of range is clamped and reported in
//            `status`
//   y  written: DATA_T [d0, …, d5], contiguous. DATA_T is an unsigned integer type of the elements'
//      size.
// One work-item per element of y; on CPUs per `share` adjacent elements (common/axes.clh).
#include "common/base.clh"
#include "common/axes.clh"
#include "common/index.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#endif

__kernel void gather_elements(IN(DATA_T, x), IN(INDEX_T, indices), OUT(DATA_T, y),
                              OUT(long, status), ELEMENT_PARAMS, const IDX_T n, const IDX_T step,
                              PARAMS_6(s)) {
#if CPU
  EACH_RUN {
    const IDX_T PLACE_OF(row);
    const IDX_T i5 = 0;
    __global const INDEX_T *const index = AT(indices) + row * d5;
    __global const DATA_T *const line = AT(x) + STRIDED(s);
    __global DATA_T *const to = AT(y) + row * d5;
    IDX_T outside = 0;
    for (IDX_T j = begin; j < stop; ++j) {
      const long given = (long)index[j];
      const ulong picked = (ulong)given + (given < 0 ? (ulong)n : 0);
      const IDX_T is_outside = picked >= (ulong)n;
      outside |= is_outside;
      to[j] = line[j * s5 + (is_outside ? 0 : (IDX_T)picked) * step];
    }
    // Out-of-range indices are rare, so they are fixed outside of the loop above, by clrt_index.
    for (IDX_T j = begin; outside && j < stop; ++j)
      to[j] = line[j * s5 + clrt_index((long)index[j], n, AT(status)) * step];
  }
#else
  FOR_EACH_ELEMENT {
    const IDX_T picked = clrt_index((long)AT(indices)[CONTIGUOUS], n, AT(status));
    AT(y)[CONTIGUOUS] = AT(x)[STRIDED(s) + picked * step];
  }
#endif
}
