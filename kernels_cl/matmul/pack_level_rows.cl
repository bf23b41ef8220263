// Repacks rows of GGUF blocks, the quantized format of llama.cpp, as operand B of matrix products
// on GPUs. The result equals that of `PackedQuantizedRows` on the host.
//   x  read: uint8 [row][file_blocks] blocks of BYTES bytes
//   y  written: uint8 [row][pitch]: levels, scales and minima of the row (common/level_rows.clh)
//   ELEMS, BYTES, BLOCK_LEVELS, …  the GGUF block type (common/gguf_blocks.clh)
//   BITS, HIGH_BITS, LEVEL_BLOCK, SCALE_BYTES, HAS_MINIMA  layout of y (common/level_rows.clh)
// One work-item per (block of LEVEL_BLOCK elements, row); a row has `blocks` such blocks.
#include "common/base.clh"
#ifndef BITS
#define BITS 4
#define HIGH_BITS 0
#define LEVEL_BLOCK 32
#define SCALE_BYTES 2
#define HAS_MINIMA 0
#endif
#include "common/gguf_blocks.clh"
#define PARTS (ELEMS / LEVEL_BLOCK)
#define HALVES (SCALE_BYTES == 1 ? 2 * file_blocks : 0)

__kernel void pack_level_rows(OUT(uchar, y), IN(uchar, x), const IDX_T file_blocks,
                              const IDX_T blocks, const IDX_T pitch, const IDX_T rows) {
  const IDX_T block = get_global_id(0), row = get_global_id(1);
  if (block >= blocks || row >= rows) return;
  const IDX_T at = block / PARTS, part = block % PARTS;
  __global const uchar *const from = AT(x) + ((size_t)row * file_blocks + at) * BYTES;
  __global uchar *const to = AT(y) + (size_t)row * pitch;
  __global uchar *const high = to + blocks * (LEVEL_BLOCK * BITS / 8);
  __global uchar *const numbers = high + blocks * (LEVEL_BLOCK * HIGH_BITS / 8);
  uint eight = 0;  // high bits of the previous four elements and of these four
  for (int i = 0; i < LEVEL_BLOCK / 4; ++i) {
    const IDX_T four = block * (LEVEL_BLOCK / 4) + i;
    const uint all = levels(from, part, i), more = all >> 4 & 0x03030303u;
    const uint bytes = HIGH_BITS ? all & 0x0F0F0F0Fu : all;
    const uint twos = more | more >> 6;
    if (HIGH_BITS == 2) high[four] = (uchar)((twos & 15) | (twos >> 12 & 0xF0));
    if (HIGH_BITS == 1) {
      eight = eight >> 4 | ((more | more >> 7 | more >> 14 | more >> 21) & 15) << 4;
      if (i % 2) high[four / 2] = (uchar)eight;
    }
#if BITS == 8
    ((__global uint *)to)[four] = bytes;
#elif BITS == 4
    const uint pairs = bytes | bytes >> 4;
    ((__global ushort *)to)[four] = (ushort)((pairs & 0xFF) | (pairs >> 8 & 0xFF00));
#else
    const uint pairs = bytes | bytes >> 6;
    to[four] = (uchar)((pairs & 15) | (pairs >> 12 & 0xF0));
#endif
  }
#if SCALE_BYTES == 1
  numbers[block] = (uchar)scale_whole(from, part);
  if (HAS_MINIMA) numbers[blocks + block] = (uchar)minimum_whole(from, part);
  // A block of the file has one half-precision scale and minimum.
  __global ushort *const halves = (__global ushort *)(numbers + (1 + HAS_MINIMA) * blocks);
  if (part == 0) halves[at] = half_bits(from, SCALE_AT);
  if (HAS_MINIMA && part == 0) halves[file_blocks + at] = half_bits(from, MINIMUM_AT);
#else
  vstore_half_rte(scale(from, part), block, (__global half *)numbers);
  if (HAS_MINIMA) vstore_half_rte(minimum(from, part), blocks + block, (__global half *)numbers);
#endif
  if (block < blocks - 1) return;
  __global uchar *const end = numbers + (1 + HAS_MINIMA) * (blocks * SCALE_BYTES + HALVES);
  for (__global uchar *rest = end; rest < to + pitch; ++rest) *rest = 0;
}
