// Columns of a convolution: [batch * group][panel][K][width] where element (k, p) is the input under
// weight k (channel, then place in the window) at output position p, 0 in the padding and past
// position P. One panel of P columns is the plain row-major matrix [K][P].
// Work-item (x, y, z): output position, weight, batch * group.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T uint
#endif

__kernel void im2col(OUT(DATA_T, y), IN(DATA_T, x), const IDX_T P, const IDX_T K,
                     const IDX_T width, const IDX_T columns, const IDX_T batches,
                     const IDX_T channels,
                     const IDX_T in0, const IDX_T in1, const IDX_T in2,
                     const IDX_T out0, const IDX_T out1, const IDX_T out2,
                     const IDX_T kernel0, const IDX_T kernel1, const IDX_T kernel2,
                     const IDX_T stride0, const IDX_T stride1, const IDX_T stride2,
                     const IDX_T dilation0, const IDX_T dilation1, const IDX_T dilation2,
                     const IDX_T pad0, const IDX_T pad1, const IDX_T pad2) {
  const IDX_T p = get_global_id(0);
  const IDX_T k = get_global_id(1);
  const IDX_T batch = get_global_id(2);
  if (p >= columns || k >= K || batch >= batches) return;
  const IDX_T w2 = k % kernel2;
  const IDX_T w1 = k / kernel2 % kernel1;
  const IDX_T w0 = k / kernel2 / kernel1 % kernel0;
  const IDX_T channel = k / kernel2 / kernel1 / kernel0;
  const IDX_T i2 = p % out2 * stride2 + w2 * dilation2 - pad2;
  const IDX_T i1 = p / out2 % out1 * stride1 + w1 * dilation1 - pad1;
  const IDX_T i0 = p / out2 / out1 * stride0 + w0 * dilation0 - pad0;
  const bool inside = p < P && i0 >= 0 && i0 < in0 && i1 >= 0 && i1 < in1 && i2 >= 0 && i2 < in2;
  const IDX_T panel = p / width;
  AT(y)[batch * columns * K + (panel * K + k) * width + (p - panel * width)] =
      inside ? AT(x)[(((batch * channels + channel) * in0 + i0) * in1 + i1) * in2 + i2] : (DATA_T)0;
}
