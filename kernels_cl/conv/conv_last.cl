// Channels-last convolution with epilogue for any dtype on any device.
//   x  read: DATA_T [images, in0, in1, in2, groups * C];  C  input channels per group
//   w  read: DATA_T [groups * N, C, kernel0, kernel1, kernel2];  N  output channels per group
//   y  written: Y_T [images, out0, out1, out2, groups * N]
//   DATA_T, Y_T  storage types of x and w, and of y, whose storage is Y_STORAGE
//                (common/storage.clh)
//   Geometry, one argument per spatial axis 0 to 2: in, out: sizes of x and y; kernel: window size;
//     stride; dilation; pad: padding before
// One work-item per (n, m, image * groups + group) computes one element of y.
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual),
//               described in matmul/gemm_cpu.cl; its variables: i0 is the image, i1 the group, m
//               the position in the image, n the output channel within the group
#ifndef DATA_T
#define DATA_T float
#define Y_T float
#define Y_STORAGE plain
#endif
#define VW 1
#include "common/base.clh"
#include "common/axes.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#define PLACE(k) (i0 * x##k##_s0 + i1 * x##k##_s1 + m * x##k##_sm)
#define COLUMNS(k, storage) LOAD_AS(storage, AT(x##k), PLACE(k) + n)
#define ROW(k, storage) LOAD_AS(storage, AT(x##k), PLACE(k))

__kernel void conv_last_any(OUT(Y_T, y), IN(DATA_T, x), IN(DATA_T, w), const IDX_T N, const IDX_T C,
                            const IDX_T groups, PARAMS_3(in), PARAMS_3(out), PARAMS_3(kernel), PARAMS_3(stride),
                            PARAMS_3(dilation), PARAMS_3(pad) EPILOGUE_PARAMS) {
  const IDX_T n = get_global_id(0), m = get_global_id(1), batch = get_global_id(2);
  if (n >= N) return;
  const IDX_T i0 = batch / groups, i1 = batch - i0 * groups;
  const IDX_T row = m / out2, plane = row / out1, map = i1 * N + n;
  const IDX_T f0 = plane * stride0 - pad0, f1 = (row - plane * out1) * stride1 - pad1;
  const IDX_T f2 = (m - row * out2) * stride2 - pad2;
  F v0 = 0;
  for (IDX_T k0 = 0; k0 < kernel0; ++k0)
    for (IDX_T k1 = 0; k1 < kernel1; ++k1)
      for (IDX_T k2 = 0; k2 < kernel2; ++k2) {
        const IDX_T q0 = f0 + k0 * dilation0, q1 = f1 + k1 * dilation1, q2 = f2 + k2 * dilation2;
        if (q0 < 0 || q0 >= in0 || q1 < 0 || q1 >= in1 || q2 < 0 || q2 >= in2) continue;
        const IDX_T from = (((i0 * in0 + q0) * in1 + q1) * in2 + q2) * groups * C + i1 * C;
        for (IDX_T c = 0; c < C; ++c) {
          const IDX_T tap = (((map * C + c) * kernel0 + k0) * kernel1 + k1) * kernel2 + k2;
          v0 += LOAD(AT(x), from + c) * LOAD(AT(w), tap);
        }
      }
  EPILOGUE_LOADS EPILOGUE_BODY
  STORE_AS(Y_STORAGE, AT(y), ((i0 * out0 * out1 * out2 + m) * groups + i1) * N + n, EPILOGUE_RESULT);
}
