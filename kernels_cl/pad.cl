// Pad with elements of x. Kept axes k0..k5 start b0..b5 elements into the output, and are walked
// in x by strides s0..s5. MODE 1 reflects without repeating the edge, 2 repeats the edge, 3 wraps.
// Work-item (x, y, z): the last axis, the one before it, and the product of the first four.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T uint
#define MODE 1
#endif

static inline IDX_T source(IDX_T i, const IDX_T n) {
#if MODE == 2
  return i < 0 ? 0 : i >= n ? n - 1 : i;
#elif MODE == 3
  i %= n;
  return i < 0 ? i + n : i;
#else
  const IDX_T period = n > 1 ? 2 * (n - 1) : 1;
  i %= period;
  if (i < 0) i += period;
  return i < n ? i : period - i;
#endif
}

__kernel void pad_mirror(IN(DATA_T, x), OUT(DATA_T, y),
                         const IDX_T d0, const IDX_T d1, const IDX_T d2, const IDX_T d3,
                         const IDX_T d4, const IDX_T d5,
                         const IDX_T k0, const IDX_T k1, const IDX_T k2, const IDX_T k3,
                         const IDX_T k4, const IDX_T k5,
                         const IDX_T s0, const IDX_T s1, const IDX_T s2, const IDX_T s3,
                         const IDX_T s4, const IDX_T s5,
                         const IDX_T b0, const IDX_T b1, const IDX_T b2, const IDX_T b3,
                         const IDX_T b4, const IDX_T b5) {
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
  const IDX_T from = source(i0 - b0, k0) * s0 + source(i1 - b1, k1) * s1 +
                     source(i2 - b2, k2) * s2 + source(i3 - b3, k3) * s3 +
                     source(i4 - b4, k4) * s4 + source(i5 - b5, k5) * s5;
  AT(y)[(z * d4 + i4) * d5 + i5] = AT(x)[from];
}
