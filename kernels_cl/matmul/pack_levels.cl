// Repacks rows of GGUF blocks, the quantized format of llama.cpp, as operand B of matrix products
// on CPU devices. The result equals that of `QuantizedPanels.pack`
// (clrt/kernels/quantized_panels_cpu.py) on the host.
//   x  read: uint8 [rows][file_blocks] blocks of BYTES bytes
//   y  written: uint8 records [panel of 32 rows][block] (`weights` in common/dots.clh); rows past
//      the last one are 0
//   ELEMS, BYTES, BLOCK_LEVELS, …  the GGUF block type (common/gguf_blocks.clh)
//   BITS, DOT_BLOCK, HAS_MINIMA  layout of y (common/dots.clh)
// One work-group of one work-item per (block of x, panel).
#include "common/base.clh"
#ifndef BITS
#define BITS 4
#define DOT_BLOCK 32
#define HAS_MINIMA 0
#endif
#include "common/gguf_blocks.clh"
#define DOT_WIDTH 32
#define PARTS (ELEMS / DOT_BLOCK)
#define LEVEL_BYTES (DOT_BLOCK * DOT_WIDTH * BITS / 8)
#define COLUMN_BYTES (DOT_WIDTH * 2)
#define WEIGHT_RECORD (LEVEL_BYTES + (1 + HAS_MINIMA) * COLUMN_BYTES)

__kernel SINGLE_ITEM
void pack_levels(OUT(uchar, y), IN(uchar, x), const IDX_T rows, const IDX_T file_blocks) {
  const IDX_T block = get_global_id(0), panel = get_global_id(1);
  __global uchar *const records = AT(y) + ((size_t)panel * file_blocks + block) * PARTS * WEIGHT_RECORD;
  for (int c = 0; c < DOT_WIDTH; ++c) {
    const IDX_T row = panel * DOT_WIDTH + c;
    const bool there = row < rows;
    __global const uchar *const from = AT(x) + ((size_t)(there ? row : 0) * file_blocks + block) * BYTES;
    for (int part = 0; part < PARTS; ++part) {
      __global uchar *const to = records + part * WEIGHT_RECORD;
      __global uint *const fours = (__global uint *)to;
      for (int i = 0; i < DOT_BLOCK * BITS / 32; ++i) {
        uint four = levels(from, part, i);
        if (BITS == 4) four |= levels(from, part, DOT_BLOCK / 8 + i) << 4;
        fours[i * DOT_WIDTH + c] = there ? four : 0;
      }
      __global half *const scales = (__global half *)(to + LEVEL_BYTES);
      vstore_half_rte(there ? scale(from, part) : 0.0f, c, scales);
      if (HAS_MINIMA) vstore_half_rte(there ? minimum(from, part) : 0.0f, DOT_WIDTH + c, scales);
    }
  }
}
