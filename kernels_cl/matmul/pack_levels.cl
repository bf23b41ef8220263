// Packs rows of GGUF's blocks as the products with 8-bit dots read them (common/dots.clh,
// clrt/kernels/levels.py): what `DotWeights.pack` makes on the host.
// Work-item (block of the file along K, panel of 32 rows).
//   FORMAT  the number of the type in files
#include "common/base.clh"
#ifndef FORMAT
#define FORMAT 2
#define BITS 4
#define DOT_BLOCK 32
#define MINIMA 0
#define ELEMS 32
#define BYTES 18
#endif
#define DOT_WIDTH 32
#define PARTS (ELEMS / DOT_BLOCK)
#define LEVEL_BYTES (DOT_BLOCK * DOT_WIDTH * BITS / 8)
#define COLUMN_BYTES (DOT_WIDTH * 2)
#define WEIGHT_RECORD (LEVEL_BYTES + (1 + MINIMA) * COLUMN_BYTES)
#define Q4_0 2
#define Q4_1 3
#define Q5_0 6
#define Q5_1 7
#define Q8_0 8
#define Q2_K 10
#define Q3_K 11
#define Q4_K 12
#define Q5_K 13
#define Q6_K 14

static inline float half_at(__global const uchar *x, const int at) {
  // Blocks start at any byte.
  const ushort bits = x[at] | x[at + 1] << 8;
  ushort there[1] = {bits};
  return vload_half(0, (const half *)there);
}
static inline int bit_at(__global const uchar *x, const int k) { return x[k / 8] >> (k % 8) & 1; }

// Of sub-block `part` of a block: the level of place k, its scale, and what is subtracted.
#if FORMAT == Q4_0 || FORMAT == Q4_1 || FORMAT == Q5_0 || FORMAT == Q5_1
#define HEAD (2 + 2 * MINIMA)
#if FORMAT == Q5_0 || FORMAT == Q5_1
static inline int level(__global const uchar *x, const int part, const int k) {
  __global const uchar *const low = x + HEAD + 4;
  return (k < 16 ? low[k] & 15 : low[k - 16] >> 4) | bit_at(x + HEAD, k) << 4;
}
#else
static inline int level(__global const uchar *x, const int part, const int k) {
  __global const uchar *const low = x + HEAD;
  return k < 16 ? low[k] & 15 : low[k - 16] >> 4;
}
#endif
static inline float scale(__global const uchar *x, const int part) { return half_at(x, 0); }
static inline float minimum(__global const uchar *x, const int part) { return -half_at(x, 2); }

#elif FORMAT == Q8_0
static inline int level(__global const uchar *x, const int part, const int k) {
  return x[2 + k] ^ 128;
}
static inline float scale(__global const uchar *x, const int part) { return half_at(x, 0); }
static inline float minimum(__global const uchar *x, const int part) { return 0.0f; }

#elif FORMAT == Q4_K || FORMAT == Q5_K
#define LOW (FORMAT == Q4_K ? 16 : 48)
static inline int level(__global const uchar *x, const int part, const int k) {
  const int low = x[LOW + part / 2 * 32 + k] >> (part % 2 * 4) & 15;
  return FORMAT == Q4_K ? low : low | (x[16 + k] >> part & 1) << 4;
}
// Eight numbers of six bits, and as many minima: the low four of the last ones lie at the end.
static inline int six_bits(__global const uchar *x, const int from, const int part) {
  if (part < 4) return x[4 + from * 4 + part] & 63;
  return (x[12 + part - 4] >> (from * 4) & 15) | x[4 + from * 4 + part - 4] >> 6 << 4;
}
static inline float scale(__global const uchar *x, const int part) {
  return half_at(x, 0) * (float)six_bits(x, 0, part);
}
static inline float minimum(__global const uchar *x, const int part) {
  return half_at(x, 2) * (float)six_bits(x, 1, part);
}

#elif FORMAT == Q6_K
static inline int level(__global const uchar *x, const int part, const int k) {
  const int at = part * 16 + k, run = at / 128, place = at % 128;
  const int low = x[run * 64 + place % 64] >> (place / 64 * 4) & 15;
  return low | (x[128 + run * 32 + place % 32] >> (place / 32 * 2) & 3) << 4;
}
static inline float scale(__global const uchar *x, const int part) {
  return half_at(x, 208) * (float)(char)x[192 + part];
}
static inline float minimum(__global const uchar *x, const int part) { return 0.0f; }

#elif FORMAT == Q2_K
static inline int level(__global const uchar *x, const int part, const int k) {
  const int at = part * 16 + k, run = at / 128, place = at % 128;
  return x[16 + run * 32 + place % 32] >> (place / 32 * 2) & 3;
}
static inline float scale(__global const uchar *x, const int part) {
  return half_at(x, 80) * (float)(x[part] & 15);
}
static inline float minimum(__global const uchar *x, const int part) {
  return half_at(x, 82) * (float)(x[part] >> 4);
}

#elif FORMAT == Q3_K
static inline int level(__global const uchar *x, const int part, const int k) {
  const int at = part * 16 + k, run = at / 128, place = at % 128;
  const int low = x[32 + run * 32 + place % 32] >> (place / 32 * 2) & 3;
  return low | (x[at % 32] >> (at / 32) & 1) << 2;
}
static inline float scale(__global const uchar *x, const int part) {
  const int low = x[96 + part % 8] >> (part / 8 * 4) & 15;
  const int high = x[104 + part % 4] >> (part / 4 * 2) & 3;
  return half_at(x, 108) * (float)((low | high << 4) - 32);
}
static inline float minimum(__global const uchar *x, const int part) { return 0.0f; }
#endif

__kernel SINGLE_ITEM
void pack_levels(OUT(uchar, y), IN(uchar, x), const IDX_T rows, const IDX_T blocks) {
  const IDX_T block = get_global_id(0), panel = get_global_id(1);
  __global uchar *const records = AT(y) + ((size_t)panel * blocks + block) * PARTS * WEIGHT_RECORD;
  for (int c = 0; c < DOT_WIDTH; ++c) {
    const IDX_T row = panel * DOT_WIDTH + c;
    const bool there = row < rows;
    __global const uchar *const from = AT(x) + ((size_t)(there ? row : 0) * blocks + block) * BYTES;
    for (int part = 0; part < PARTS; ++part) {
      __global uchar *const to = records + part * WEIGHT_RECORD;
      __global uint *const fours = (__global uint *)to;
      for (int i = 0; i < DOT_BLOCK * BITS / 32; ++i) {
        uint four = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint one = level(from, part, 4 * i + j);
          if (BITS == 4) one |= level(from, part, DOT_BLOCK / 2 + 4 * i + j) << 4;
          four |= one << (8 * j);
        }
        fours[i * DOT_WIDTH + c] = there ? four : 0;
      }
      __global half *const scales = (__global half *)(to + LEVEL_BYTES);
      vstore_half_rte(there ? scale(from, part) : 0.0f, c, scales);
      if (MINIMA) vstore_half_rte(there ? minimum(from, part) : 0.0f, DOT_WIDTH + c, scales);
    }
  }
}
