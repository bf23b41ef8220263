// Depthwise convolution (one input channel per group), channels first, with epilogue: channel o of
// y is the correlation of channel o / maps of x with weights[o].
//   x        read: DATA_T [images, outputs / maps, in0, in1, in2]; maps: output channels per input
//            channel
//   weights  read: DATA_T [outputs, kernel0, kernel1, kernel2]
//   y        written: Y_T [images, outputs, out0, out1, out2]
//   Geometry, one argument per spatial axis 0 to 2: in, out: sizes of x and y; kernel: window size;
//     stride; dilation; pad: padding before. A plane is one channel of one image; planes = images *
//     outputs
//   conv_depthwise_cpu  (VW > 1) float32; one work-group of one work-item per (block of `rows`
//                      rows, plane): for each weight it loops over the columns of y whose input is
//                      inside x
//   conv_depthwise_gpu  (VW 1, T_ROWS) a work-item computes T_ROWS rows of one column of a plane;
//                      the window's geometry is known as defines S_KERNEL1, S_STRIDE2, S_DILATION1,
//                      …
//   conv_depthwise_any  (VW 1) one work-item per (column, row, plane): one element of y
//   VW, T_VW  lanes per vector of conv_depthwise_cpu;  Y_STORAGE  storage of y (common/storage.clh)
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual),
//               described in matmul/gemm_cpu.cl; its variables: i0 is the image, i1 the group, m
//               the output channel within the group, n the position in the plane
#ifndef T_VW
#define T_VW 8
#endif
#ifndef VW
#define VW T_VW
#endif
#ifndef DATA_T
#define DATA_T float
#define Y_T float
#define Y_STORAGE plain
#endif
#include "common/base.clh"
#include "common/axes.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/repeat.clh"
#include "common/scalar.clh"
#define GEOMETRY                                                                              \
  const IDX_T outputs, const IDX_T maps, PARAMS_3(in), PARAMS_3(out), PARAMS_3(kernel), PARAMS_3(stride), \
      PARAMS_3(dilation), PARAMS_3(pad)

#define START_PLANE                                                        \
  const IDX_T i0 = plane / outputs, channel = plane - i0 * outputs;        \
  const IDX_T i1 = channel / maps, m = channel - i1 * maps;                \
  const IDX_T source = (i0 * (outputs / maps) + i1) * in0 * in1 * in2;

#if VW == 1
#define PLACE(k) (i0 * x##k##_s0 + i1 * x##k##_s1 + m * x##k##_sm)
#define COLUMNS(k, storage) LOAD_AS(storage, AT(x##k), PLACE(k) + n)
#define ROW(k, storage) LOAD_AS(storage, AT(x##k), PLACE(k))

#if T_ROWS
#define EACH_ROW CAT(ROWS_, T_ROWS)
#define ZERO(j) F sum##j = 0.0f;
// Reads outside are clamped to the edge: unconditional loads are all in flight at once. A row of x
// that several j and k1 share is loaded once.
#define ADD(j)                                                                                    \
  {                                                                                               \
    const IDX_T from1 = f1 + j * S_STRIDE1 + k1 * S_DILATION1;                                    \
    const IDX_T line = source + (from0 * in1 + clamp(from1, 0, in1 - 1)) * in2;                   \
    const F v = LOAD(AT(x) + line, column);                                                       \
    sum##j += weight * ((uint)from2 < (uint)in2 & (uint)from1 < (uint)in1 ? v : 0.0f);            \
  }
#define WRITE(j)                                                                                  \
  if (first + j < out1) {                                                                         \
    const IDX_T n = (r0 * out1 + first + j) * out2 + p2;                                          \
    const F v0 = sum##j;                                                                          \
    EPILOGUE_LOADS EPILOGUE_BODY                                                                                    \
    STORE_AS(Y_STORAGE, AT(y), plane * out0 * out1 * out2 + n, EPILOGUE_RESULT);                           \
  }

__kernel void conv_depthwise_gpu(OUT(Y_T, y), IN(DATA_T, x), IN(DATA_T, weights), GEOMETRY,
                                 const IDX_T planes EPILOGUE_PARAMS) {
  // Adjacent work-items have adjacent columns, also across short rows and small planes.
  const IDX_T blocks = (out1 + T_ROWS - 1) / T_ROWS;
  GLOBAL_XYZ(p2, slice, plane, out2, out0 * blocks)
  if ((uint)plane >= (uint)planes) return;
  const IDX_T i0 = plane < outputs ? 0 : plane / outputs, channel = plane - i0 * outputs;
  const IDX_T i1 = OVER(channel, maps), m = channel - i1 * maps;
  const IDX_T source = OVER(plane, maps) * in0 * in1 * in2;
  const IDX_T r0 = out0 == 1 ? 0 : slice / blocks, first = (slice - r0 * blocks) * T_ROWS;
  const IDX_T f0 = r0 * stride0 - pad0, f1 = first * S_STRIDE1 - pad1, f2 = p2 * S_STRIDE2 - pad2;
  // If x has no elements nothing may be read, not even instead of padding.
  const IDX_T end0 = in1 > 0 && in2 > 0 ? in0 : 0;
  EACH_ROW(ZERO)
  for (IDX_T k0 = 0; k0 < kernel0; ++k0) {
    const IDX_T from0 = f0 + k0 * dilation0;
    if ((uint)from0 >= (uint)end0) continue;
    __global const DATA_T *const window =
        AT(weights) + (channel * kernel0 + k0) * S_KERNEL1 * S_KERNEL2;
    // Large windows are not unrolled over all columns, which would exceed the registers.
#if S_KERNEL1 * S_KERNEL2 > 9
#pragma unroll 1
    for (IDX_T k2 = 0; k2 < kernel2; ++k2) {
#else
#pragma unroll
    for (IDX_T k2 = 0; k2 < S_KERNEL2; ++k2) {
#endif
      const IDX_T from2 = f2 + k2 * S_DILATION2;
      const size_t column = clamp(from2, 0, in2 - 1);
#pragma unroll
      for (IDX_T k1 = 0; k1 < S_KERNEL1; ++k1) {
        const F weight = LOAD(window, k1 * S_KERNEL2 + k2);
        EACH_ROW(ADD)
      }
    }
  }
  EACH_ROW(WRITE)
}

#else
__kernel void conv_depthwise_any(OUT(Y_T, y), IN(DATA_T, x), IN(DATA_T, weights), GEOMETRY,
                                 const IDX_T planes EPILOGUE_PARAMS) {
  GLOBAL_XYZ(p2, row, plane, out2, out0 * out1)
  if (p2 >= out2 || (uint)plane >= (uint)planes) return;
  START_PLANE
  const IDX_T r0 = row / out1, n = row * out2 + p2;
  const IDX_T f0 = r0 * stride0 - pad0, f1 = (row - r0 * out1) * stride1 - pad1;
  const IDX_T f2 = p2 * stride2 - pad2;
  F v0 = 0;
  for (IDX_T k0 = 0; k0 < kernel0; ++k0)
    for (IDX_T k1 = 0; k1 < kernel1; ++k1)
      for (IDX_T k2 = 0; k2 < kernel2; ++k2) {
        const IDX_T from0 = f0 + k0 * dilation0, from1 = f1 + k1 * dilation1;
        const IDX_T from2 = f2 + k2 * dilation2;
        if (from0 < 0 || from0 >= in0 || from1 < 0 || from1 >= in1) continue;
        if (from2 < 0 || from2 >= in2) continue;
        v0 += LOAD(AT(weights), ((channel * kernel0 + k0) * kernel1 + k1) * kernel2 + k2) *
              LOAD(AT(x), source + (from0 * in1 + from1) * in2 + from2);
      }
  EPILOGUE_LOADS EPILOGUE_BODY
  STORE_AS(Y_STORAGE, AT(y), plane * out0 * out1 * out2 + n, EPILOGUE_RESULT);
}
#endif
#else
#include "common/rows.clh"
#include "common/finish.clh"
#define VECTORS_AT_ONCE 8

__kernel SINGLE_ITEM
void conv_depthwise_cpu(OUT(float, y), IN(float, x), IN(float, weights), GEOMETRY,
                        const IDX_T rows EPILOGUE_PARAMS) {
  const IDX_T plane = get_global_id(1);
  START_PLANE
  const IDX_T end = min(out0 * out1, (IDX_T)(get_global_id(0) + 1) * rows);
  __global float *const y_plane = AT(y) + plane * out0 * out1 * out2;
  for (IDX_T row = get_global_id(0) * rows; row < end; ++row) {
    const IDX_T r0 = row / out1;
    const IDX_T f0 = r0 * stride0 - pad0, f1 = (row - r0 * out1) * stride1 - pad1;
    for (IDX_T column = 0; column < out2; column += VECTORS_AT_ONCE * VW) {
      const IDX_T count = min((IDX_T)(VECTORS_AT_ONCE * VW), out2 - column);
      F sums[VECTORS_AT_ONCE];
      float *const sum = (float *)sums;
      for (IDX_T j = 0; j < VECTORS_AT_ONCE; ++j) sums[j] = (F)(0.0f);
      for (IDX_T k0 = 0; k0 < kernel0; ++k0)
        for (IDX_T k1 = 0; k1 < kernel1; ++k1) {
          const IDX_T from0 = f0 + k0 * dilation0, from1 = f1 + k1 * dilation1;
          if (from0 < 0 || from0 >= in0 || from1 < 0 || from1 >= in1) continue;
          __global const float *const line = AT(x) + source + (from0 * in1 + from1) * in2;
          for (IDX_T k2 = 0; k2 < kernel2; ++k2) {
            const IDX_T place = ((channel * kernel0 + k0) * kernel1 + k1) * kernel2 + k2;
            const float weight = AT(weights)[place];
            const IDX_T from2 = column * stride2 - pad2 + k2 * dilation2;
            const IDX_T low = from2 >= 0 ? 0 : (stride2 - 1 - from2) / stride2;
            const IDX_T high = from2 < in2 ? min(count, (in2 - 1 - from2) / stride2 + 1) : 0;
            if (stride2 == 1)
              for (IDX_T j = low; j < high; ++j) sum[j] += weight * line[from2 + j];
            else
              for (IDX_T j = low; j < high; ++j) sum[j] += weight * line[from2 + j * stride2];
          }
        }
      for (IDX_T j = 0; j < count; j += VW) {
        const IDX_T n = row * out2 + column + j, N = n + count - j;
        const F v0 = sums[j / VW];
        EPILOGUE_LOADS EPILOGUE_BODY
        store_columns(y_plane + n, EPILOGUE_RESULT, N - n);
      }
    }
  }
}
#endif
