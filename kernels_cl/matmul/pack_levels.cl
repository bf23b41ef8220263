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
static inline uint word_at(__global const uchar *x, const int at) { return as_uint(vload4(0, x + at)); }
#define LOW_4 0x0F0F0F0Fu
#define LOW_2 0x03030303u
#define LOW_1 0x01010101u

// Of sub-block `part` of a block: the levels of places 4 i to 4 i + 3, its scale, and what is
// subtracted.
#if FORMAT == Q4_0 || FORMAT == Q4_1 || FORMAT == Q5_0 || FORMAT == Q5_1
#define HEAD (2 + 2 * MINIMA)
#define HAS_HIGH (FORMAT == Q5_0 || FORMAT == Q5_1)
static inline uint levels(__global const uchar *x, const int part, const int i) {
  const uint low = word_at(x, HEAD + 4 * HAS_HIGH + i % 4 * 4) >> (i / 4 * 4) & LOW_4;
  // Four bits, each to a byte.
  const uint high = (word_at(x, HEAD) >> 4 * i & 15) * 0x00204081u & LOW_1;
  return HAS_HIGH ? low | high << 4 : low;
}
static inline float scale(__global const uchar *x, const int part) { return half_at(x, 0); }
static inline float minimum(__global const uchar *x, const int part) { return -half_at(x, 2); }

#elif FORMAT == Q8_0
static inline uint levels(__global const uchar *x, const int part, const int i) {
  return word_at(x, 2 + 4 * i) ^ 0x80808080u;
}
static inline float scale(__global const uchar *x, const int part) { return half_at(x, 0); }
static inline float minimum(__global const uchar *x, const int part) { return 0.0f; }

#elif FORMAT == Q4_K || FORMAT == Q5_K
#define LOW (FORMAT == Q4_K ? 16 : 48)
static inline uint levels(__global const uchar *x, const int part, const int i) {
  const uint low = word_at(x, LOW + part / 2 * 32 + 4 * i) >> (part % 2 * 4) & LOW_4;
  return FORMAT == Q4_K ? low : low | (word_at(x, 16 + 4 * i) >> part & LOW_1) << 4;
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

#else
// Halves of 128 places.
#define PLACE (part % 8 * 16 + 4 * i)
#if FORMAT == Q6_K
static inline uint levels(__global const uchar *x, const int part, const int i) {
  const uint low = word_at(x, part / 8 * 64 + PLACE % 64) >> (PLACE / 64 * 4) & LOW_4;
  return low | (word_at(x, 128 + part / 8 * 32 + PLACE % 32) >> (PLACE / 32 * 2) & LOW_2) << 4;
}
static inline float scale(__global const uchar *x, const int part) {
  return half_at(x, 208) * (float)(char)x[192 + part];
}
static inline float minimum(__global const uchar *x, const int part) { return 0.0f; }

#elif FORMAT == Q2_K
static inline uint levels(__global const uchar *x, const int part, const int i) {
  return word_at(x, 16 + part / 8 * 32 + PLACE % 32) >> (PLACE / 32 * 2) & LOW_2;
}
static inline float scale(__global const uchar *x, const int part) {
  return half_at(x, 80) * (float)(x[part] & 15);
}
static inline float minimum(__global const uchar *x, const int part) {
  return half_at(x, 82) * (float)(x[part] >> 4);
}

#elif FORMAT == Q3_K
static inline uint levels(__global const uchar *x, const int part, const int i) {
  const uint low = word_at(x, 32 + part / 8 * 32 + PLACE % 32) >> (PLACE / 32 * 2) & LOW_2;
  return low | (word_at(x, PLACE % 32) >> (part / 8 * 4 + PLACE / 32) & LOW_1) << 2;
}
static inline float scale(__global const uchar *x, const int part) {
  const int low = x[96 + part % 8] >> (part / 8 * 4) & 15;
  const int high = x[104 + part % 4] >> (part / 4 * 2) & 3;
  return half_at(x, 108) * (float)((low | high << 4) - 32);
}
static inline float minimum(__global const uchar *x, const int part) { return 0.0f; }
#endif
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
        uint four = levels(from, part, i);
        if (BITS == 4) four |= levels(from, part, DOT_BLOCK / 8 + i) << 4;
        fours[i * DOT_WIDTH + c] = there ? four : 0;
      }
      __global half *const scales = (__global half *)(to + LEVEL_BYTES);
      vstore_half_rte(there ? scale(from, part) : 0.0f, c, scales);
      if (MINIMA) vstore_half_rte(there ? minimum(from, part) : 0.0f, DOT_WIDTH + c, scales);
    }
  }
}
