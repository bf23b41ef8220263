// Gather of rows of a low-bit matrix [N, K], such as token embeddings: y[row] = dequantized row
// indices[row]. For GPUs.
//   b        read: the matrix, packed as operand B of a product on GPUs (common/level_rows.clh,
//            whose macros BITS, LEVEL_BLOCK, … describe it)
//   indices  read: INDEX_T [rows]; one out of range is clamped and reported in `status`
//            (common/index.clh)
//   y        written: float32 [rows, K]; K is a multiple of LEVEL_BLOCK
// One work-item per (x, row) writes elements 4 x to 4 x + 3 of a row.
#ifndef BITS
#define BITS 4
#define HIGH_BITS 0
#define LEVEL_BLOCK 32
#define ZERO_LEVEL 8
#define HAS_MINIMA 0
#define SCALE_BYTES 2
#define SHARED 1
#endif
#ifndef INDEX_T
#define INDEX_T int
#endif
#include "common/base.clh"
#include "common/index.clh"
#include "common/level_rows.clh"

__kernel void gather_level_rows(OUT(float, y), IN(uchar, b), IN(INDEX_T, indices), OUT(long, status),
                                const IDX_T N, const IDX_T K LEVEL_INPUTS) {
  const IDX_T k = get_global_id(0) * 4, row = get_global_id(1);
  if (k >= K) return;
  const IDX_T n = clrt_index(AT(indices)[row], N, AT(status));
  const float4 v = level_four(AT(b) + (size_t)n * pitch, blocks, k);
  // K is a multiple of the block size, so rows of y are whole vectors.
  *(__global float4 *)(AT(y) + row * K + k) = v;
}
