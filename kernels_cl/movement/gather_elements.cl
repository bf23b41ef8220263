// GatherElements: y[.., i, ..] = x[.., indices[.., i, ..], ..]. The strides s of x are 0 on the
// gathered axis, whose own stride is `step`; d are the dims of y.
#include "common/base.clh"
#include "common/axes.clh"
#include "common/index.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#endif

__kernel void gather_elements(IN(DATA_T, x), IN(INDEX_T, indices), OUT(DATA_T, y),
                              OUT(long, status), PLACES, const IDX_T n, const IDX_T step,
                              AXES(s)) {
  EACH_PLACE {
    const IDX_T picked = clrt_index((long)AT(indices)[CONTIGUOUS], n, AT(status));
    AT(y)[CONTIGUOUS] = AT(x)[STRIDED(s) + picked * step];
  }
}
