// y = epilogue(A B), float32, for CPU devices with low-bit B; rows of A are quantized to 8 bits by
// blocks of DOT_BLOCK elements here (common/dots.clh). The two batch axes have indices i0 and i1
// (below d1); batch = i0 * d1 + i1. Strides are in elements.
//   a  read: float32, element (m, k) at i0 * a_s0 + i1 * a_s1 + m * a_row + k
//   b  read: [panel of 32 columns][block] records (`weights` in common/dots.clh), the same for all
//      batches
//   y  written: float32 [batch, M, N]
//   records  scratch: quantized rows of A (`records` in common/dots.clh)
// A work-group of one work-item computes `height` rows by `columns` columns of y: it quantizes its
// rows once, into its share of `records`, then multiplies them by its panels tile by tile.
//   BITS, DOT_BLOCK, HAS_MINIMA, ZERO_LEVEL, SCALE_BYTES, DOT_ISA  format of b and instructions
//                      (common/dots.clh)
//   FUSE_RMS_PROLOGUE  1: rows of A are first RMS-normalized (epsilon) and multiplied by a_scale
//                      [K]
//   SECOND_GEMM  if defined, the epilogue also reads `second`, the tile of A times b2, which is
//                packed as b
//   S_N_WHOLE   1: N is a multiple of T_VW for all shapes, so that no vector is partial
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual)
//               applied to each sum, described in matmul/gemm_cpu.cl
#ifndef T_VW
#define T_VW 8
#endif
#ifndef FUSE_RMS_PROLOGUE
#define FUSE_RMS_PROLOGUE 0
#endif
#define VW T_VW
#define T_NV (DOT_WIDTH / T_VW)
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/dots.clh"
#include "common/round_block.clh"
#include "common/finish.clh"
#include "common/mean_square.clh"
#if FUSE_RMS_PROLOGUE
#define NORM_ROWS , IN(float, a_scale), const float epsilon
#define NORM_POINTER , __global const float *scale
#define NORM_ARGUMENT , AT(a_scale)
#else
#define NORM_ROWS
#define NORM_POINTER
#define NORM_ARGUMENT
#endif
#ifdef SECOND_GEMM
#define SECOND_GEMM_B , IN(uchar, b2)
#else
#define SECOND_GEMM_B
#endif
#define TILE_ROWS 4

DOT_TILE(dot_one, 1)
DOT_TILE(dot_four, 4)

// Quantizes a row of A, K floats x times `factor` (and times scale [K], if fused), to int8 levels
// in blocks of DOT_BLOCK elements. The blocks are written to the records of a tile of `rows` rows
// (common/dots.clh); `to` is the row's part of the first record. The last block is padded with 0.
static inline void quantise_row(__global uchar *to, const IDX_T rows, __global const float *x,
                                const IDX_T K, const float factor NORM_POINTER) {
#pragma OPENCL FP_CONTRACT OFF
  for (IDX_T k0 = 0; k0 < K; k0 += DOT_BLOCK, to += rows * ROW_RECORD) {
    F block[BLOCK_VECTORS];
    F most = (F)(0.0f);
    for (int i = 0; i < BLOCK_VECTORS; ++i) {
      const IDX_T k = k0 + i * VW, count = K - k;
      F v = count >= VW ? LOAD_F(x + k) : load_lanes(x + k, count, 0.0f);
      v *= factor;
#if FUSE_RMS_PROLOGUE
      v *= count >= VW ? LOAD_F(scale + k) : load_lanes(scale + k, count, 0.0f);
#endif
      block[i] = v;
      const F size = c_abs(v);
      most = LARGER(size, most);
    }
    round_block(to, block, most);
  }
}

__kernel SINGLE_ITEM
void gemm_levels_cpu(OUT(float, y), IN(float, a), IN(uchar, b), OUT(uchar, records), const IDX_T M,
                     const IDX_T N, const IDX_T K, const IDX_T height, const IDX_T columns,
                     const IDX_T d1, const IDX_T a_s0, const IDX_T a_s1,
                     const IDX_T a_row EPILOGUE_PARAMS NORM_ROWS SECOND_GEMM_B) {
  const IDX_T blocks = (K + DOT_BLOCK - 1) / DOT_BLOCK;
  const IDX_T spans = (N + columns - 1) / columns, stripes = (M + height - 1) / height;
  const IDX_T at = get_group_id(0);
  const IDX_T batch = at / (spans * stripes), i0 = batch / d1, i1 = batch % d1;
  const IDX_T m_first = at / spans % stripes * height, n_first = at % spans * columns;
  const IDX_T rows = i_min(height, M - m_first), n_end = i_min(n_first + columns, N);
  __global uchar *const own = AT(records) + at * height * blocks * ROW_RECORD;
  __global const float *const a_rows = AT(a) + i0 * a_s0 + i1 * a_s1 + m_first * a_row;
  const IDX_T whole = rows / TILE_ROWS * TILE_ROWS;
  for (IDX_T r = 0; r < rows; ++r) {
    __global const float *const x = a_rows + r * a_row;
    float factor = 1.0f;
#if FUSE_RMS_PROLOGUE
    factor = 1.0f / sqrt(mean_square(x, K) + epsilon);
#endif
    const IDX_T tile = r < whole ? TILE_ROWS : 1, first = r < whole ? r % TILE_ROWS : 0;
    quantise_row(own + ((r - first) * blocks + first) * ROW_RECORD, tile, x, K, factor NORM_ARGUMENT);
  }
  for (IDX_T n0 = n_first; n0 < n_end; n0 += DOT_WIDTH) {
    __global const uchar *const panel = AT(b) + (size_t)(n0 / DOT_WIDTH) * blocks * WEIGHT_RECORD;
    for (IDX_T r = 0; r < rows;) {
      F tile[TILE_ROWS * T_NV];
      const IDX_T count = r < whole ? TILE_ROWS : 1;
      __global const uchar *const part = own + r * blocks * ROW_RECORD;
#define MULTIPLY(to, from)                           \
  if (count == 1)                                    \
    dot_one((float *)to, from, part, blocks);        \
  else                                               \
    dot_four((float *)to, from, part, blocks);
      MULTIPLY(tile, panel)
#ifdef SECOND_GEMM
      F second[TILE_ROWS * T_NV];
      MULTIPLY(second, AT(b2) + (panel - AT(b)))
#endif
      for (IDX_T i = 0; i < count; ++i) {
        const IDX_T m = m_first + r + i;
        __global float *const y_row = AT(y) + (batch * M + m) * N;
        for (int j = 0; j < T_NV; ++j) FINISH(i, j)
      }
      r += count;
    }
  }
}
