// Channels-last convolution, float32, on CPUs, as an implicit matrix product: row m of A is the
// window of output position m, read in place from x.
//   x  read: [images, in0, in1, in2] positions, x_pitch elements apart, of groups * C channels
//   w  read: [group][panel][window element][channel][T_NV * T_VW], output channels padded with
//      zeros to whole panels
//   y  written: [images, out0, out1, out2] positions, y_pitch elements apart, of groups * N
//      channels
//   zeros  read in place of the padding: kernel2 * C zeros
//   C, N   input and output channels per group;  M  number of positions of y, of all images
//   Geometry, one argument per spatial axis 0 to 2: in, out: sizes of x and y; kernel: window size;
//     stride; dilation; pad: padding before
// A work-group of one work-item computes a group, a stripe of `height` blocks of T_MR positions,
// and a panel of T_NV * T_VW output channels. Work-groups are ordered by chunks of T_MC blocks, all
// panels of a chunk first, so that its part of x stays cached.
//   S_N_WHOLE  1: N is a multiple of T_VW
//   T_MR, T_NV, T_VW  positions, vectors, and lanes per vector of a register tile;  T_KU  unrolled
//                    steps of the loop over channels
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual),
//               described in matmul/gemm_cpu.cl; its variables: i0 is the image, i1 the group, m
//               the position in the image, n the output channel within the group
#ifndef T_VW
#define T_VW 8
#define T_NV 3
#define T_MR 4
#define T_KU 2
#define T_MC 32
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
#define START_ROW(i) \
  __global const float *const a##i = WINDOW(i, k0, k1, k2, x_pitch, zeros_at);

__kernel SINGLE_ITEM
void conv_rows_cpu(OUT(float, y), IN(float, x), IN(float, w), IN(float, zeros), const IDX_T M,
                   const IDX_T N, const IDX_T C, const IDX_T groups, const IDX_T height,
                   const IDX_T x_pitch, const IDX_T y_pitch, WINDOWS EPILOGUE_PARAMS) {
  const IDX_T blocks = (M + T_MR - 1) / T_MR;
  const IDX_T stripes = (blocks + height - 1) / height;
  const IDX_T panels = (N + PANEL_WIDTH - 1) / PANEL_WIDTH;
  const IDX_T i1 = (IDX_T)get_global_id(0) / (stripes * panels);
  const IDX_T at = (IDX_T)get_global_id(0) % (stripes * panels);
  const IDX_T chunk = at / (T_MC / height * panels) * (T_MC / height);
  const IDX_T chunk_stripes = i_min(T_MC / height, stripes - chunk);
  const IDX_T in_chunk = at - chunk * panels;
  const IDX_T block_first = (chunk + in_chunk % chunk_stripes) * height;
  const IDX_T block_end = i_min(block_first + height, blocks);
  const IDX_T n0 = in_chunk / chunk_stripes * PANEL_WIDTH;
  const IDX_T positions = out0 * out1 * out2;
  const IDX_T depth = kernel0 * kernel1 * kernel2 * C;
  __global const float *const weights = AT(w) + (i1 * panels * PANEL_WIDTH + n0) * depth;
  __global const float *const zeros_at = AT(zeros);
  for (IDX_T block = block_first; block < block_end; ++block) {
    const IDX_T m0 = block * T_MR;
    START_WINDOWS(AT(x) + i1 * C, m0, M, x_pitch)
    // Elements under adjacent taps are contiguous, too, if the pitch is C.
    const bool joined = inside2 && dilation2 == 1 && x_pitch == C;
    const IDX_T runs = joined ? 1 : kernel2;
    const IDX_T run = joined ? kernel2 * C : C;
    __global const float *panel = weights;
    F tile[T_MR * T_NV];
    {
      ROWS(ZERO_ROW)
      for (IDX_T k0 = 0; k0 < kernel0; ++k0)
        for (IDX_T k1 = 0; k1 < kernel1; ++k1)
          for (IDX_T k2 = 0; k2 < runs; ++k2) {
            ROWS(START_ROW)
            // No builtin in this loop: see multiply_rows.inc.
#pragma unroll T_KU
            for (IDX_T k = 0; k < run; ++k) {
              VECTORS(LOAD_B, 0)
              ROWS(MULTIPLY_ROW)
              panel += PANEL_WIDTH;
            }
          }
      ROWS(KEEP_ROW)
    }
    const IDX_T rows = i_min(T_MR, M - m0);
    for (IDX_T i = 0; i < rows; ++i) {
      const IDX_T i0 = (m0 + i) / positions;
      const IDX_T m = m0 + i - i0 * positions;
      __global float *const y_row = AT(y) + (m0 + i) * y_pitch + i1 * N;
      VECTORS(FINISH, i)
    }
  }
}
