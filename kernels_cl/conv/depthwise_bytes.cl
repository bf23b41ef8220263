// Channels-last depthwise convolution of 8-bit levels (integer codes of quantized elements) on CPU
// devices, one output channel per input channel, requantized to 8-bit levels
// (common/requantize.clh). The sums are computed in float32, which is exact: they are integers
// below 2^24.
//   x  read: X_T (char or uchar) [images, in0, in1, in2, N]
//   w  read: per panel of T_VW channels (clrt/ops/conv/conv_quantized.py) float32 weights minus
//      their zero points [window element][channel]; then per channel its int32 bias and float32
//      factor
//   y  written: LEVEL_T [images, out0, out1, out2, N]
//   x_zero  zero point of x, which is its padding, too
//   Geometry, one argument per spatial axis 0 to 2: in, out: sizes of x and y; kernel: window size;
//     stride; dilation; pad: padding before
// A work-group of one work-item computes all channels of `height` of the `rows` rows of y (rows are
// numbered through all images). A register tile is T_MR adjacent positions of a row by T_VW
// channels; the last tile of a row overlaps the previous one if it would be shorter.
//   S_ACROSS, S_STEP  window size and stride along axis 2, if the window is not dilated along it
//                     and the loop over it is unrolled; otherwise both are 0
#ifndef T_VW
#define T_VW 8
#define T_MR 4
#define X_T uchar
#define LEVEL_T uchar
#define S_ACROSS 3
#define S_STEP 1
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/axes.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/widen.clh"
#include "common/requantize.clh"
#define WINDOWS PARAMS_3(in), PARAMS_3(out), PARAMS_3(kernel), PARAMS_3(stride), PARAMS_3(dilation), PARAMS_3(pad)
typedef CAT(X_T, VW) __attribute__((aligned(1))) LEVELS_UNALIGNED;
#if S_STEP
#define READ_OF_TILE ((T_MR - 1) * S_STEP + S_ACROSS)
#endif

// Returns the first `count` levels at p minus the zero point of x; 0 in other lanes.
static inline F load_levels(__global const X_T *p, const IDX_T count, const int x_zero) {
  if (count >= VW) return WIDE_AS(float, WIDE_AS(int, *(__global const LEVELS_UNALIGNED *)p) - (I)(x_zero));
  F v = (F)(0.0f);
  for (IDX_T lane = 0; lane < count; ++lane) ((float *)&v)[lane] = (float)((int)p[lane] - x_zero);
  return v;
}

__kernel SINGLE_ITEM
void depthwise_bytes_cpu(OUT(LEVEL_T, y), IN(X_T, x), IN(float, w), const IDX_T rows, const IDX_T N,
                         const IDX_T height, const int x_zero, WINDOWS, REQUANTIZE) {
  const IDX_T taps = kernel0 * kernel1 * kernel2;
  const IDX_T end = i_min(((IDX_T)get_group_id(0) + 1) * height, rows);
  for (IDX_T row = (IDX_T)get_group_id(0) * height; row < end; ++row) {
    const IDX_T plane = row / out1, image = plane / out0;
    const IDX_T from0 = (plane - image * out0) * stride0 - pad0;
    const IDX_T from1 = (row - plane * out1) * stride1 - pad1;
    for (IDX_T n0 = 0; n0 < N; n0 += VW) {
      const IDX_T count = N - n0;
      __global const float *const panel = AT(w) + n0 * (taps + 2);
      const I biases = *(__global const I *)(panel + taps * VW);
      const F factors = *(__global const F *)(panel + taps * VW + VW);
      for (IDX_T column = 0; column < out2; column += T_MR) {
        const IDX_T first = i_max(i_min(column, out2 - T_MR), 0);
        const IDX_T from2 = first * stride2 - pad2;
        F sums[T_MR];
#pragma unroll
        for (int i = 0; i < T_MR; ++i) sums[i] = (F)(0.0f);
        for (IDX_T k0 = 0; k0 < kernel0; ++k0)
          for (IDX_T k1 = 0; k1 < kernel1; ++k1) {
            const IDX_T at0 = from0 + k0 * dilation0, at1 = from1 + k1 * dilation1;
            if (at0 < 0 || at0 >= in0 || at1 < 0 || at1 >= in1) continue;
            __global const X_T *const line = AT(x) + ((image * in0 + at0) * in1 + at1) * in2 * N + n0;
            __global const F *const weights = (__global const F *)(panel + (k0 * kernel1 + k1) * kernel2 * VW);
#if S_STEP
            F read[READ_OF_TILE];
            if (from2 >= 0 && from2 + READ_OF_TILE <= in2) {
#pragma unroll
              for (int i = 0; i < READ_OF_TILE; ++i) read[i] = load_levels(line + (from2 + i) * N, count, x_zero);
            } else {
#pragma unroll
              for (int i = 0; i < READ_OF_TILE; ++i) {
                read[i] = (F)(0.0f);
                if (from2 + i >= 0 && from2 + i < in2) read[i] = load_levels(line + (from2 + i) * N, count, x_zero);
              }
            }
#pragma unroll
            for (int k2 = 0; k2 < S_ACROSS; ++k2) {
#pragma unroll
              for (int i = 0; i < T_MR; ++i) sums[i] = read[i * S_STEP + k2] * weights[k2] + sums[i];
            }
#else
            for (IDX_T k2 = 0; k2 < kernel2; ++k2) {
              for (int i = 0; i < T_MR; ++i) {
                const IDX_T at2 = from2 + i * stride2 + k2 * dilation2;
                if (at2 >= 0 && at2 < in2) sums[i] += load_levels(line + at2 * N, count, x_zero) * weights[k2];
              }
            }
#endif
          }
        for (IDX_T i = column - first; i < i_min(T_MR, out2 - first); ++i)
          store_levels(AT(y) + (row * out2 + first + i) * N + n0,
                       LEVELS_OF(WIDE_AS(int, sums[i]) + biases, factors), count);
      }
    }
  }
}
