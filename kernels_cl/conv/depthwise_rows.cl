// Channels-last depthwise convolution with one output channel per input channel, float32, on CPUs.
//   x      read: [images, in0, in1, in2] positions, x_pitch elements apart, of N channels
//   w      read: weights [panel of T_NV * T_VW channels][window element][channel]
//   y      written: [images, out0, out1, out2] positions, y_pitch elements apart, of N channels
//   zeros  read in place of the padding: N zeros
//   Geometry, one argument per spatial axis 0 to 2: in, out: sizes of x and y; kernel: window size;
//     stride; dilation; pad: padding before
// A work-group of one work-item computes all channels of `height` of the `rows` rows of y (rows are
// numbered through all images). A register tile is T_MR adjacent positions of a row by T_NV vectors
// of T_VW channels; the last tile of a row overlaps the previous one if it would be shorter.
//   S_TAPS    window elements
//   S_ACROSS, S_STEP  window size and stride along axis 2, if the elements of a window row are
//                     contiguous and the loop over them is unrolled; otherwise both are 0
//   S_WHOLE   1: N is a multiple of T_NV * T_VW;  S_N_WHOLE  1: N is a multiple of T_VW
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual),
//               described in matmul/gemm_cpu.cl; its variables: i0 is the image, i1 is 0, m the
//               position in the image, n the channel
#ifndef T_MR
#define T_MR 4
#define T_NV 2
#define T_VW 8
#define S_TAPS 9
#define S_ACROSS 3
#define S_STEP 1
#define S_WHOLE 0
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/axes.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/tile.clh"
#include "common/finish.clh"
#include "common/windows.clh"
#define PANEL_WIDTH (T_NV * T_VW)
#define LOAD_B(i, j) const F b##j = LOAD_F(panel + j * T_VW);
#define CORRELATE(i, j) acc##i##_##j = LOAD_F(a##i + j * T_VW) * b##j + acc##i##_##j;
#define CORRELATE_ROW(i) VECTORS(CORRELATE, i)
#define FOUND(i) __global const float *const a##i = found[i] + n0;

// Computes a tile from `windows`, the address of each tap of each position.
#define MULTIPLY_FOUND                            \
  {                                               \
    __global const float *const *found = windows; \
    ROWS(ZERO_ROW)                                \
    for (IDX_T tap = 0; tap < S_TAPS; ++tap) {    \
      VECTORS(LOAD_B, 0)                          \
      ROWS(FOUND)                                 \
      ROWS(CORRELATE_ROW)                         \
      panel += PANEL_WIDTH;                       \
      found += T_MR;                              \
    }                                             \
    ROWS(KEEP_ROW)                                \
  }

#if S_STEP
#define TAPS(X) CAT(TAPS_, S_ACROSS)(X)
#define TAPS_3(X) X(0) X(1) X(2)
#define TAPS_5(X) TAPS_3(X) X(3) X(4)
#define TAPS_7(X) TAPS_5(X) X(5) X(6)
#define READ_OF_TILE ((T_MR - 1) * S_STEP + S_ACROSS)

// Elements shared by positions are loaded once: after unrolling the compiler sees the equal loads.
#define CORRELATE_INSIDE(i, j) \
  acc##i##_##j = LOAD_F(line + (i * S_STEP + tap) * x_pitch + j * T_VW) * b##j + acc##i##_##j;
#define INSIDE_ROW(i) VECTORS(CORRELATE_INSIDE, i)
#define TAP_INSIDE(t)      \
  {                        \
    const int tap = t;     \
    VECTORS(LOAD_B, 0)     \
    ROWS(INSIDE_ROW)       \
    panel += PANEL_WIDTH;  \
  }
#define CORRELATE_AT_EDGE(i, j)                                                          \
  acc##i##_##j = AS_F(AS_I(LOAD_F(line + near[i * S_STEP + tap] + j * T_VW)) &           \
                      (I)(kept[i * S_STEP + tap])) * b##j + acc##i##_##j;
#define EDGE_ROW(i) VECTORS(CORRELATE_AT_EDGE, i)
#define TAP_AT_EDGE(t)     \
  {                        \
    const int tap = t;     \
    VECTORS(LOAD_B, 0)     \
    ROWS(EDGE_ROW)         \
    panel += PANEL_WIDTH;  \
  }

// Computes a tile line by line of the window, by TAP per element of a line; lines in the padding
// are skipped.
#define MULTIPLY_LINES(TAP)                                                                  \
  {                                                                                          \
    ROWS(ZERO_ROW)                                                                           \
    for (IDX_T k0 = 0; k0 < kernel0; ++k0)                                                   \
      for (IDX_T k1 = 0; k1 < kernel1; ++k1) {                                               \
        const IDX_T at0 = from0 + k0 * dilation0, at1 = from1 + k1 * dilation1;              \
        if (at0 < 0 || at0 >= in0 || at1 < 0 || at1 >= in1) {                                \
          panel += S_ACROSS * PANEL_WIDTH;                                                   \
          continue;                                                                          \
        }                                                                                    \
        __global const float *const line = image + ((at0 * in1 + at1) * in2 + from2) * x_pitch + n0; \
        TAPS(TAP)                                                                            \
      }                                                                                      \
    ROWS(KEEP_ROW)                                                                           \
  }
#endif

__kernel SINGLE_ITEM
void depthwise_rows_cpu(OUT(float, y), IN(float, x), IN(float, w), IN(float, zeros), const IDX_T rows,
                        const IDX_T N, const IDX_T height, const IDX_T x_pitch, const IDX_T y_pitch,
                        WINDOWS EPILOGUE_PARAMS) {
  const IDX_T end = i_min(((IDX_T)get_global_id(0) + 1) * height, rows);
  const IDX_T i1 = 0;
  for (IDX_T row = (IDX_T)get_global_id(0) * height; row < end; ++row) {
    const IDX_T plane = row / out1, i0 = plane / out0;
    const IDX_T from0 = (plane - i0 * out0) * stride0 - pad0;
    const IDX_T from1 = (row - plane * out1) * stride1 - pad1;
    __global const float *const image = AT(x) + i0 * in0 * in1 * in2 * x_pitch;
    for (IDX_T column = 0; column < out2; column += T_MR) {
      const IDX_T first = i_max(i_min(column, out2 - T_MR), 0);
      const IDX_T count = i_min(T_MR, out2 - first);
      const IDX_T from2 = first * stride2 - pad2;
#if S_STEP
      const bool inside = from2 >= 0 && from2 + READ_OF_TILE <= in2;
      // Replacement address of reads in the padding, and the mask that discards them.
      IDX_T near[READ_OF_TILE];
      int kept[READ_OF_TILE];
      for (IDX_T i = 0; i < (inside ? 0 : READ_OF_TILE); ++i) {
        const IDX_T at = i_max(i_min(from2 + i, in2 - 1), 0);
        near[i] = (at - from2) * x_pitch;
        kept[i] = -(at == from2 + i);
      }
#endif
#if !S_STEP || !S_WHOLE
      __global const float *windows[S_TAPS * T_MR];
      __global const float **to = windows;
      for (IDX_T k0 = 0; k0 < kernel0; ++k0)
        for (IDX_T k1 = 0; k1 < kernel1; ++k1)
          for (IDX_T k2 = 0; k2 < kernel2; ++k2)
            for (IDX_T i = 0; i < T_MR; ++i)
              *to++ = window_at(image, from0 + k0 * dilation0, from1 + k1 * dilation1,
                                from2 + i_min(i, count - 1) * stride2 + k2 * dilation2, in0, in1,
                                in2, x_pitch, AT(zeros));
#endif
      for (IDX_T n0 = 0; n0 < N; n0 += PANEL_WIDTH) {
        F tile[T_MR * T_NV];
        __global const float *panel = AT(w) + n0 * S_TAPS;
#if !S_WHOLE
        if (n0 + PANEL_WIDTH > N) {
          for (IDX_T i = 0; i < T_MR * T_NV; ++i) tile[i] = (F)(0.0f);
          for (IDX_T tap = 0; tap < S_TAPS; ++tap)
            for (IDX_T i = 0; i < count; ++i)
              for (IDX_T n = 0; n < N - n0; ++n)
                ((float *)(tile + i * T_NV))[n] +=
                    windows[tap * T_MR + i][n0 + n] * panel[tap * PANEL_WIDTH + n];
        } else
#endif
#if S_STEP
        if (inside) MULTIPLY_LINES(TAP_INSIDE)
        else MULTIPLY_LINES(TAP_AT_EDGE)
#else
        MULTIPLY_FOUND
#endif
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
