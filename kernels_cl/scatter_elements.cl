// ScatterElements into y, which already holds x: one work-item walks one line of the indices along
// the axis, so that no two work-items write one element and the order is that of the indices.
// d, u: dims and strides of the indices, 1 and 0 on the axis (`length`, `walk`); s: strides of y,
// 0 on the axis (`step`). Work-item (x, y, z): last axis, the one before, the first four.
#include "common/base.clh"
#include "common/index.clh"
#include "common/scatter.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#endif

__kernel void scatter_elements(IN(INDEX_T, indices), IN(DATA_T, updates), OUT(DATA_T, y),
                               OUT(int, status), const IDX_T n, const IDX_T step,
                               const IDX_T length, const IDX_T walk,
                               const IDX_T d0, const IDX_T d1, const IDX_T d2, const IDX_T d3,
                               const IDX_T d4, const IDX_T d5,
                               const IDX_T s0, const IDX_T s1, const IDX_T s2, const IDX_T s3,
                               const IDX_T s4, const IDX_T s5,
                               const IDX_T u0, const IDX_T u1, const IDX_T u2, const IDX_T u3,
                               const IDX_T u4, const IDX_T u5) {
  const IDX_T i5 = get_global_id(0);
  const IDX_T i4 = get_global_id(1);
  IDX_T rest = get_global_id(2);
  if (i5 >= d5 || i4 >= d4) return;
  IDX_T next = rest / d3;
  const IDX_T i3 = rest - next * d3;
  rest = next;
  next = rest / d2;
  const IDX_T i2 = rest - next * d2;
  const IDX_T i0 = next / d1;
  const IDX_T i1 = next - i0 * d1;
  const IDX_T line = i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3 + i4 * s4 + i5 * s5;
  IDX_T from = i0 * u0 + i1 * u1 + i2 * u2 + i3 * u3 + i4 * u4 + i5 * u5;
  for (IDX_T k = 0; k < length; ++k, from += walk) {
    const IDX_T at = line + clrt_index((long)AT(indices)[from], n, AT(status)) * step;
    AT(y)[at] = COMBINE(AT(y)[at], AT(updates)[from]);
  }
}
