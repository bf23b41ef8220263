// Gather of rows of a low-bit matrix [N, K], such as token embeddings: y[row] = dequantized row
// indices[row]. For CPU devices.
//   b        read: the matrix, packed as operand B of a product on CPU devices: records [panel of
//            32 rows][block] (`weights` in common/dots.clh, whose macros BITS, DOT_BLOCK, …
//            describe it); `blocks` blocks per row
//   indices  read: INDEX_T [rows]; one out of range is clamped and reported in `status`
//            (common/index.clh)
//   y        written: float32 [rows, K]
// One work-item per (block of DOT_BLOCK elements, row).
#include "common/base.clh"
#include "common/index.clh"
#include "common/dots.clh"
#ifndef INDEX_T
#define INDEX_T int
#endif

__kernel void gather_levels(OUT(float, y), IN(uchar, b), IN(INDEX_T, indices), OUT(long, status),
                            const IDX_T N, const IDX_T K, const IDX_T blocks) {
  const IDX_T block = get_global_id(0), row = get_global_id(1);
  if (block >= blocks) return;
  const IDX_T n = clrt_index(AT(indices)[row], N, AT(status));
  __global const uchar *const weights =
      AT(b) + ((size_t)(n / DOT_WIDTH) * blocks + block) * WEIGHT_RECORD;
  const float scale = dot_column(weights + LEVEL_BYTES, n % DOT_WIDTH);
  const float minimum = HAS_MINIMA ? dot_column(weights + LEVEL_BYTES + COLUMN_BYTES, n % DOT_WIDTH) : 0;
  __global float *const to = AT(y) + row * K + block * DOT_BLOCK;
  for (int k = 0; k < DOT_BLOCK && block * DOT_BLOCK + k < K; ++k)
    to[k] = (float)(dot_level(weights, k, n % DOT_WIDTH) - ZERO_LEVEL) * scale - minimum;
}
