// ScatterElements into y, which already holds x: one work-item walks one line of the indices along
// the axis, so that no two work-items write one element and the order is that of the indices.
// d, u: dims and strides of the indices, 1 and 0 on the axis (`length`, `walk`); s: strides of y,
// 0 on the axis (`step`).
#include "common/base.clh"
#include "common/axes.clh"
#include "common/index.clh"
#include "common/scatter.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#endif

__kernel void scatter_elements(IN(INDEX_T, indices), IN(DATA_T, updates), INOUT(DATA_T, y),
                               OUT(long, status), PLACES, const IDX_T n, const IDX_T step,
                               const IDX_T length, const IDX_T walk, AXES(s), AXES(u)) {
  EACH_PLACE {
    const IDX_T line = STRIDED(s);
    IDX_T from = STRIDED(u);
    for (IDX_T k = 0; k < length; ++k, from += walk) {
      const IDX_T at = line + clrt_index((long)AT(indices)[from], n, AT(status)) * step;
      AT(y)[at] = COMBINE(AT(y)[at], AT(updates)[from]);
    }
  }
}
