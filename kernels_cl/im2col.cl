// The windows of a convolution as columns: y[image][group][k][position], k = (channel, window).
// Up to three spatial axes, the missing ones of size 1. Work-item (x, y, z): output position,
// row k, image * groups + group.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T uint
#endif

__kernel void im2col(OUT(DATA_T, y), IN(DATA_T, x), const IDX_T positions, const IDX_T channels,
                     const IDX_T i0, const IDX_T i1, const IDX_T i2,
                     const IDX_T o1, const IDX_T o2,
                     const IDX_T w0, const IDX_T w1, const IDX_T w2,
                     const IDX_T stride0, const IDX_T stride1, const IDX_T stride2,
                     const IDX_T dilation0, const IDX_T dilation1, const IDX_T dilation2,
                     const IDX_T pad0, const IDX_T pad1, const IDX_T pad2) {
  const IDX_T p = get_global_id(0);
  if (p >= positions) return;
  const IDX_T k = get_global_id(1);
  const IDX_T stack = get_global_id(2);
  const IDX_T p01 = p / o2;
  const IDX_T p0 = p01 / o1;
  const IDX_T k012 = k / w2;
  const IDX_T k01 = k012 / w1;
  const IDX_T channel = k01 / w0;
  const IDX_T at0 = p0 * stride0 - pad0 + (k01 - channel * w0) * dilation0;
  const IDX_T at1 = (p01 - p0 * o1) * stride1 - pad1 + (k012 - k01 * w1) * dilation1;
  const IDX_T at2 = (p - p01 * o2) * stride2 - pad2 + (k - k012 * w2) * dilation2;
  const int inside = at0 >= 0 && at0 < i0 && at1 >= 0 && at1 < i1 && at2 >= 0 && at2 < i2;
  const IDX_T rows = channels * w0 * w1 * w2;
  AT(y)[(stack * rows + k) * positions + p] =
      inside ? AT(x)[(((stack * channels + channel) * i0 + at0) * i1 + at1) * i2 + at2] : 0;
}
