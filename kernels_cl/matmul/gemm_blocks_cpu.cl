// y = epilogue(A B), float32, for CPU devices, with block-quantized B that is dequantized here. The
// two batch axes have indices i0 and i1 (below d1); batch = i0 * d1 + i1. Strides are in elements.
//   a  read: float32, element (m, k) at i0 * a_s0 + i1 * a_s1 + m * a_row + k
//   b  read: uint8 levels, with scales and zero points in `blocks` (common/blocks.clh), one panel
//      per T_NV * T_VW columns; the same for all batches
//   y  written: float32 [batch, M, N]
// A work-group of one work-item computes T_MB blocks of T_MR rows by one panel: it dequantizes T_KC
// rows of B at a time, then multiplies all blocks of rows by them, with the sums of a block in
// registers. For up to FEW_BLOCKS blocks, dequantized elements are used at once, not stored.
//   T_MR, T_NV, T_VW  rows, vectors and lanes per vector of a register tile
//   S_N_WHOLE   1: N is a multiple of T_VW for all shapes, so that no vector is partial
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual)
//               applied to each sum, described in matmul/gemm_cpu.cl
#ifndef T_MR
#define T_MR 4
#define T_NV 3
#define T_VW 8
#define T_MB 8
#define T_KC 128
#endif
#ifndef BITS
#define BITS 4
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/blocks.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/tile.clh"
#include "common/finish.clh"
#include "common/widen.clh"

#define WIDTH (T_NV * T_VW)
#define LINES_AHEAD 64
#define FEW_BLOCKS 2
#define LOAD_BLOCK(i, j)                             \
  const F scale##j = LOAD_F(scales + j * T_VW);      \
  const F zero##j = LOAD_F(scales + WIDTH + j * T_VW);
#define ELEMENTS(j) ((WIDE_AS(float, LEVELS(WIDE_INTS(line + j * T_VW), k)) - zero##j) * scale##j)
#define UNPACK(i, j) to[j] = ELEMENTS(j);
#define UNPACK_B(i, j) const F b##j = ELEMENTS(j);
#define LOAD_B(i, j) const F b##j = from[j];
// Runs LINE for each k from k_first to k_end (exclusive); `line` points to the levels of k, and
// vectors scale<j> and zero<j> are those of its block.
#define LINES(k_first, k_end, LINE)                                               \
  for (IDX_T k = k_first, block = k / block_size; k < k_end; ++block) {           \
    const IDX_T stop = i_min((block + 1) * block_size, k_end);                    \
    __global const float *const scales = panel_scales + block * 2 * WIDTH;        \
    VECTORS(LOAD_BLOCK, 0)                                                        \
    for (; k < stop; ++k) {                                                       \
      __global const uchar *const line = panel + k / PER * WIDTH;                 \
      PREFETCH(line + LINES_AHEAD * WIDTH);                                       \
      LINE                                                                        \
    }                                                                             \
  }
#define RESUME(i, j) F acc##i##_##j = tile[i * T_NV + j];
#define RESUME_ROW(i) VECTORS(RESUME, i)

__kernel SINGLE_ITEM
void gemm_blocks_cpu(OUT(float, y), IN(float, a), IN(uchar, b) BLOCK_INPUTS, const IDX_T M,
                     const IDX_T N, const IDX_T K, const IDX_T d1, const IDX_T a_s0,
                     const IDX_T a_s1, const IDX_T a_row EPILOGUE_PARAMS) {
  const IDX_T row_blocks = (M + T_MR - 1) / T_MR;
  const IDX_T chunks = (row_blocks + T_MB - 1) / T_MB;
  const IDX_T panels = (N + WIDTH - 1) / WIDTH;
  const IDX_T batch = (IDX_T)get_global_id(0) / (chunks * panels);
  const IDX_T at = (IDX_T)get_global_id(0) % (chunks * panels);
  const IDX_T n0 = at % panels * WIDTH;
  const IDX_T first_row = at / panels * (T_MB * T_MR);
  const IDX_T last_row = i_min(first_row + T_MB * T_MR, M);
  const IDX_T i0 = batch / d1;
  const IDX_T i1 = batch % d1;
  __global const float *const a_batch = AT(a) + i0 * a_s0 + i1 * a_s1;
  const IDX_T block_count = (K + block_size - 1) / block_size;
  __global const uchar *const panel = AT(b) + n0 * (block_count * block_size / PER);
  __global const float *const panel_scales = AT(blocks) + n0 * (block_count * 2);
  F sums[T_MB * T_MR * T_NV];
  F *tile = sums;
  if (last_row - first_row <= FEW_BLOCKS * T_MR) {
    // For few rows, dequantized elements are used at once, not stored.
    for (IDX_T m0 = first_row; m0 < last_row; m0 += T_MR, tile += T_MR * T_NV) {
      ROWS(ROW_POINTER)
      ROWS(ZERO_ROW)
      LINES(0, K, VECTORS(UNPACK_B, 0) ROWS(MULTIPLY_ROW))
      ROWS(KEEP_ROW)
    }
  } else {
    F floats[T_KC * T_NV];
    for (int t = 0; t < T_MB * T_MR * T_NV; ++t) sums[t] = (F)(0.0f);
    for (IDX_T k0 = 0; k0 < K; k0 += T_KC) {
      const IDX_T k_end = i_min(k0 + T_KC, K);
      F *to = floats;
      LINES(k0, k_end, VECTORS(UNPACK, 0) to += T_NV;)
      tile = sums;
      for (IDX_T m0 = first_row; m0 < last_row; m0 += T_MR, tile += T_MR * T_NV) {
        ROWS(ROW_POINTER)
        ROWS(RESUME_ROW)
        const F *from = floats;
        for (IDX_T k = k0; k < k_end; ++k, from += T_NV) {
          VECTORS(LOAD_B, 0)
          ROWS(MULTIPLY_ROW)
        }
        ROWS(KEEP_ROW)
      }
    }
  }
  tile = sums;
  for (IDX_T m = first_row; m < last_row; ++m, tile += T_NV) {
    __global float *const y_row = AT(y) + (batch * M + m) * N;
    VECTORS(FINISH, 0)
  }
}
