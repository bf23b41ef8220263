// GatherElements: y[.., i, ..] = x[.., indices[.., i, ..], ..]. The strides s of x are 0 on the
// gathered axis, whose own stride is `step`.
// Work-item (x, y, z): the last axis, the one before it, and the product of the first four.
#include "common/base.clh"
#include "common/index.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#endif

__kernel void gather_elements(IN(DATA_T, x), IN(INDEX_T, indices), OUT(DATA_T, y),
                              OUT(int, status), const IDX_T n, const IDX_T step,
                              const IDX_T d0, const IDX_T d1, const IDX_T d2, const IDX_T d3,
                              const IDX_T d4, const IDX_T d5,
                              const IDX_T s0, const IDX_T s1, const IDX_T s2, const IDX_T s3,
                              const IDX_T s4, const IDX_T s5) {
  const IDX_T i5 = get_global_id(0);
  const IDX_T i4 = get_global_id(1);
  const IDX_T z = get_global_id(2);
  if (i5 >= d5 || i4 >= d4) return;
  IDX_T rest = z;
  IDX_T next = rest / d3;
  const IDX_T i3 = rest - next * d3;
  rest = next;
  next = rest / d2;
  const IDX_T i2 = rest - next * d2;
  const IDX_T i0 = next / d1;
  const IDX_T i1 = next - i0 * d1;
  const IDX_T at = (z * d4 + i4) * d5 + i5;
  const IDX_T row = clrt_index((long)AT(indices)[at], n, AT(status));
  AT(y)[at] = AT(x)[i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3 + i4 * s4 + i5 * s5 + row * step];
}
