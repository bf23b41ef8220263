// Channels-last convolution of 8-bit levels (integer codes of quantized elements), requantized to
// 8-bit levels, on any device.
//   x  read: X_T (char or uchar) [images, in0, in1, in2, groups * C]
//   w  read: X_T or another 8-bit W_T [groups * N, C, kernel0, kernel1, kernel2]
//   w_zeros, factors  read: int32 zero points of w and float32 factors, [groups * N]
//   biases  read: int32 [groups * N], added to the sums
//   y  written: LEVEL_T [images, out0, out1, out2, groups * N]: sum * factor, limited to low..high
//      and rounded, plus zero, where a sum is that of (x - x_zero) (w - zero point); padding is
//      x_zero
//   C, N   input and output channels per group
//   Geometry, one argument per spatial axis 0 to 2: in, out: sizes of x and y; kernel: window size;
//     stride; dilation; pad: padding before
// Global size (groups * N, positions of y in an image, images).
#include "common/base.clh"
#include "common/axes.clh"
#ifndef X_T
#define X_T uchar
#define W_T char
#define LEVEL_T uchar
#endif

__kernel void conv_levels_any(OUT(LEVEL_T, y), IN(X_T, x), IN(W_T, w), IN(int, w_zeros),
                              IN(int, biases), IN(float, factors), const IDX_T N, const IDX_T C,
                              const IDX_T groups, const int x_zero, PARAMS_3(in), PARAMS_3(out),
                              PARAMS_3(kernel), PARAMS_3(stride), PARAMS_3(dilation), PARAMS_3(pad),
                              const int zero, const float low, const float high) {
  const IDX_T n = get_global_id(0), m = get_global_id(1), image = get_global_id(2);
  const IDX_T positions = out0 * out1 * out2, channels = groups * N;
  if (n >= channels || m >= positions) return;
  const IDX_T row = m / out2, plane = row / out1;
  const IDX_T from2 = (m - row * out2) * stride2 - pad2, from1 = (row - plane * out1) * stride1 - pad1;
  const IDX_T from0 = plane * stride0 - pad0, first = n / N * C, w_zero = AT(w_zeros)[n];
  __global const W_T *tap = AT(w) + n * C * kernel0 * kernel1 * kernel2;
  int sum = AT(biases)[n];
  for (IDX_T c = 0; c < C; ++c)
    for (IDX_T k0 = 0; k0 < kernel0; ++k0)
      for (IDX_T k1 = 0; k1 < kernel1; ++k1)
        for (IDX_T k2 = 0; k2 < kernel2; ++k2, ++tap) {
          const IDX_T at0 = from0 + k0 * dilation0, at1 = from1 + k1 * dilation1, at2 = from2 + k2 * dilation2;
          if (at0 < 0 || at0 >= in0 || at1 < 0 || at1 >= in1 || at2 < 0 || at2 >= in2) continue;
          const IDX_T at = (((image * in0 + at0) * in1 + at1) * in2 + at2) * groups * C + first + c;
          sum += ((int)AT(x)[at] - x_zero) * ((int)*tap - (int)w_zero);
        }
  float v = (float)sum * AT(factors)[n];
  v = v > low ? v : low;
  v = v < high ? v : high;
  AT(y)[(image * positions + m) * channels + n] = (LEVEL_T)((int)rint(v) + zero);
}
