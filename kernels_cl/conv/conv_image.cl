// Convolution of images with one input channel, float32, on CPUs; the result is channels-last.
//   x  read: [images, in0, in1, in2]
//   w  read: weights [panel of T_NV * T_VW output channels][window element][output channel], zero
//      past channel N
//   y  written: [images, out0, out1, out2] positions, y_pitch elements apart, of N output channels
//   Geometry, one argument per spatial axis 0 to 2: in, out: sizes of x and y; kernel: window size;
//     stride; dilation; pad: padding before
// A work-group of one work-item computes all channels of `height` of the `rows` rows of y (rows are
// numbered through all images). A register tile is T_MR adjacent positions of a row by T_NV vectors
// of T_VW channels; the last tile of a row overlaps the previous one if it would be shorter.
// Windows are read row by row, and each element read is used for all positions whose window has it.
//   S_ACROSS  window size along axis 2, whose dilation is 1;  S_STEP  stride along axis 2
//   S_N_WHOLE  1: N is a multiple of T_VW
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual),
//               described in matmul/gemm_cpu.cl; its variables: i0 is the image, i1 is 0, m the
//               position in the image, n the output channel
#ifndef T_VW
#define T_VW 8
#define T_NV 3
#define T_MR 4
#define S_ACROSS 3
#define S_STEP 1
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/axes.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/tile.clh"
#include "common/finish.clh"
#define PANEL_WIDTH (T_NV * T_VW)
#define READ_OF_TILE ((T_MR - 1) * S_STEP + S_ACROSS)
#define LOAD_B(i, j) const F b##j = LOAD_F(panel + j * T_VW);
#define MULTIPLY_AT(i) \
  {                                             \
    const F a_k = (F)(line[i * S_STEP + k]);    \
    VECTORS(MULTIPLY, i)                        \
  }
#define MULTIPLY_LINE                                        \
  _Pragma("unroll") for (int k = 0; k < S_ACROSS; ++k) {     \
    VECTORS(LOAD_B, 0)                                       \
    ROWS(MULTIPLY_AT)                                        \
    panel += PANEL_WIDTH;                                    \
  }

__kernel SINGLE_ITEM
void conv_image_cpu(OUT(float, y), IN(float, x), IN(float, w), const IDX_T rows, const IDX_T N,
                    const IDX_T height, const IDX_T y_pitch, PARAMS_3(in), PARAMS_3(out), PARAMS_3(kernel), PARAMS_3(stride),
                    PARAMS_3(dilation), PARAMS_3(pad) EPILOGUE_PARAMS) {
  const IDX_T i1 = 0;
  const IDX_T end = i_min(((IDX_T)get_global_id(0) + 1) * height, rows);
  for (IDX_T row = (IDX_T)get_global_id(0) * height; row < end; ++row) {
    const IDX_T plane = row / out1, i0 = plane / out0;
    const IDX_T from0 = (plane - i0 * out0) * stride0 - pad0;
    const IDX_T from1 = (row - plane * out1) * stride1 - pad1;
    __global const float *const image = AT(x) + i0 * in0 * in1 * in2;
    for (IDX_T column = 0; column < out2; column += T_MR) {
      const IDX_T first = i_max(i_min(column, out2 - T_MR), 0);
      const IDX_T count = i_min(T_MR, out2 - first);
      const IDX_T from2 = first * S_STEP - pad2;
      const bool inside = from2 >= 0 && from2 + READ_OF_TILE <= in2;
      __global const float *panel = AT(w);
      for (IDX_T n0 = 0; n0 < N; n0 += PANEL_WIDTH) {
        F tile[T_MR * T_NV];
        ROWS(ZERO_ROW)
        for (IDX_T k0 = 0; k0 < kernel0; ++k0)
          for (IDX_T k1 = 0; k1 < kernel1; ++k1) {
            const IDX_T at0 = from0 + k0 * dilation0, at1 = from1 + k1 * dilation1;
            __global const float *const source = image + (at0 * in1 + at1) * in2 + from2;
            if (at0 < 0 || at0 >= in0 || at1 < 0 || at1 >= in1) {
              panel += S_ACROSS * PANEL_WIDTH;
            } else if (inside) {
              __global const float *const line = source;
              MULTIPLY_LINE
            } else {
              float line[READ_OF_TILE];
              for (IDX_T i = 0; i < READ_OF_TILE; ++i)
                line[i] = from2 + i >= 0 && from2 + i < in2 ? source[i] : 0.0f;
              MULTIPLY_LINE
            }
          }
        ROWS(KEEP_ROW)
        // Overlapping positions are not stored twice: y may alias what the epilogue reads.
        for (IDX_T i = column - first; i < count; ++i) {
          const IDX_T m = row * out2 + first + i - i0 * out0 * out1 * out2;
          __global float *const y_row = AT(y) + (row * out2 + first + i) * y_pitch;
          VECTORS(FINISH, i)
        }
      }
    }
  }
}
