// Channels-last convolution of 8-bit levels (integer codes of quantized elements) on CPU devices by
// 8-bit dot products with int32 sums (common/byte_dots.clh), requantized to 8-bit levels
// (common/requantize.clh).
//   x  read: A_T (char or uchar) [images, in0, in1, in2, groups * C]
//   w  read: per group and panel of 32 output channels (clrt/ops/conv/conv_quantized.py) uint8
//      levels [K / 4][channel][4]; then per channel an int32 added to its sums (bias and zero point
//      of x), int32 its zero point, and its float32 factor
//   y  written: LEVEL_T [images, out0, out1, out2, groups * N]
//   records  scratch: levels of the windows, stored as level - A_MIDDLE, to fit int8
//   C, N   input and output channels per group;  M  number of positions of y, of all images
//   padding  level of x outside the image, its zero point
//   Geometry, one argument per spatial axis 0 to 2: in, out: sizes of x and y; kernel: window size;
//     stride; dilation; pad: padding before
// K counts the elements of a window in runs of adjacent elements of x, each padded to a multiple of
// 4: with JOINED a run is a line of kernel2 * C elements, otherwise the C channels of one position.
// A work-group of one work-item computes `share` blocks of `height` positions, at most MOST_ROWS, by
// `columns` channels of a group, of `blocks` in all: it gathers the windows of a block into its
// part of `records`, then multiplies them by the panels tile by tile. Blocks with the same windows
// are adjacent.
//   A_MIDDLE  middle of the levels A_T, 0 for char, 128 for uchar
//   JOINED    1: one group, and dilation2 is 1
#ifndef T_VW
#define T_VW 8
#endif
#ifndef MOST_ROWS
#define MOST_ROWS 64
#define A_T uchar
#define A_MIDDLE 128
#define LEVEL_T uchar
#define JOINED 1
#endif
#define VW T_VW
#define T_NV (BYTE_WIDTH / T_VW)
#include "common/base.clh"
#include "common/axes.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/widen.clh"
#include "common/byte_records.clh"
#include "common/requantize.clh"
#define TILE_ROWS 8
#define WINDOWS PARAMS_3(in), PARAMS_3(out), PARAMS_3(kernel), PARAMS_3(stride), PARAMS_3(dilation), PARAMS_3(pad)

// Stores `count` levels of the padding as keep_levels stores those of x.
static inline int keep_padding(__global uchar *to, const IDX_T rows, const char level, const IDX_T count) {
  const IDX_T words = (count + BYTE_PLACES - 1) / BYTE_PLACES;
  for (IDX_T w = 0; w < words; ++w) ((__global int *)to)[w * rows] = (int)((uint)(uchar)level * 0x01010101u);
  return (int)words * BYTE_PLACES * level;
}

#if JOINED
// Stores a line of a window that is partly outside x as keep_levels stores one that is inside. `x`
// is the line's first element, which may be outside; its positions first <= k2 < end are inside.
static inline int keep_edge(__global uchar *to, const IDX_T rows, __global const A_T *x, const char level,
                            const IDX_T first, const IDX_T end, const IDX_T count, const IDX_T C) {
  int sum = 0;
  if (C % BYTE_PLACES == 0) {
    for (IDX_T k = 0; k < count; k += C)
      sum += k >= first * C && k < end * C ? keep_levels(to + k * rows, rows, x + k, C)
                                           : keep_padding(to + k * rows, rows, level, C);
    return sum;
  }
  for (IDX_T k = 0; k < count; k += BYTE_PLACES) {
    char bytes[BYTE_PLACES];
    for (IDX_T i = 0; i < BYTE_PLACES; ++i) {
      const IDX_T at = k + i;
      bytes[i] = at >= first * C && at < i_min(end * C, count) ? (char)(x[at] ^ (char)A_MIDDLE) : level;
      sum += bytes[i];
    }
    *(__global int *)(to + k * rows) = *(const int *)bytes;
  }
  return sum;
}
#endif

__kernel SINGLE_ITEM
void conv_bytes_cpu(OUT(LEVEL_T, y), IN(A_T, x), IN(uchar, w), OUT(uchar, records), const IDX_T M,
                    const IDX_T N, const IDX_T C, const IDX_T groups, const IDX_T height,
                    const IDX_T columns, const IDX_T share, const IDX_T blocks, const int padding,
                    WINDOWS, REQUANTIZE) {
  const IDX_T lines = kernel0 * kernel1 * (JOINED ? 1 : kernel2), run = JOINED ? kernel2 * C : C;
  const IDX_T run_words = (run + BYTE_PLACES - 1) / BYTE_PLACES, words = lines * run_words;
  const IDX_T run_depth = run_words * BYTE_PLACES, depth = words * BYTE_PLACES;
  const IDX_T record = words * BYTE_GROUP + 3 * BYTE_WIDTH * (IDX_T)sizeof(int);
  const IDX_T spans = (N + columns - 1) / columns, stripes = (M + height - 1) / height;
  const IDX_T stride = groups * C;
  const char outside = (char)(padding ^ A_MIDDLE);
  __global uchar *const own = AT(records) + get_group_id(0) * height * depth;
  int row_sums[MOST_ROWS];
  const IDX_T block_first = get_group_id(0) * share, block_end = UP_TO(block_first, share, blocks);
  for (IDX_T block = block_first; block < block_end; ++block) {
    const IDX_T group = block / (spans * stripes), m_first = block / spans % stripes * height;
    const IDX_T n_first = block % spans * columns, n_end = i_min(n_first + columns, N);
    const IDX_T rows = i_min(height, M - m_first);
    for (IDX_T r = block > block_first && n_first > 0 ? rows : 0; r < rows;) {
      const IDX_T count = tile_rows(rows - r);
      for (IDX_T i = 0; i < count; ++i) {
        const IDX_T m = m_first + r + i, row = m / out2, plane = row / out1, image = plane / out0;
        const IDX_T from2 = (m - row * out2) * stride2 - pad2;
        const IDX_T from1 = (row - plane * out1) * stride1 - pad1;
        const IDX_T from0 = (plane - image * out0) * stride0 - pad0;
        __global uchar *to = own + r * depth + i * BYTE_PLACES;
        int sum = 0;
        for (IDX_T k0 = 0; k0 < kernel0; ++k0)
          for (IDX_T k1 = 0; k1 < kernel1; ++k1) {
            const IDX_T at0 = from0 + k0 * dilation0, at1 = from1 + k1 * dilation1;
            const bool inside = at0 >= 0 && at0 < in0 && at1 >= 0 && at1 < in1;
            const IDX_T line = ((image * in0 + at0) * in1 + at1) * in2;
#if JOINED
            __global const A_T *const first = AT(x) + (line + from2) * C;
            const IDX_T left = i_max(-from2, 0), right = i_min(in2 - from2, kernel2);
            if (!inside)
              sum += keep_padding(to, count, outside, run);
            else if (left == 0 && right == kernel2)
              sum += keep_levels(to, count, first, run);
            else
              sum += keep_edge(to, count, first, outside, left, right, run, C);
            to += run_depth * count;
#else
            for (IDX_T k2 = 0; k2 < kernel2; ++k2) {
              const IDX_T at2 = from2 + k2 * dilation2;
              if (inside && at2 >= 0 && at2 < in2)
                sum += keep_levels(to, count, AT(x) + (line + at2) * stride + group * C, C);
              else
                sum += keep_padding(to, count, outside, C);
              to += run_depth * count;
            }
#endif
          }
        row_sums[r + i] = sum;
      }
      r += count;
    }
    __global const uchar *panel = AT(w) + (group * ((N + BYTE_WIDTH - 1) / BYTE_WIDTH) + n_first / BYTE_WIDTH) * record;
    for (IDX_T n0 = n_first; n0 < n_end; n0 += BYTE_WIDTH, panel += record) {
      __global const I *const starts = (__global const I *)(panel + words * BYTE_GROUP);
      __global const I *const zeros = starts + T_NV;
      __global const F *const factors = (__global const F *)(zeros + T_NV);
      for (IDX_T r = 0; r < rows;) {
        I tile[TILE_ROWS * T_NV];
        const IDX_T count = tile_rows(rows - r);
        multiply_bytes((int *)tile, panel, own + r * depth, count, words);
        for (IDX_T i = 0; i < count; ++i) {
          const I row_sum = (I)(row_sums[r + i]);
          __global LEVEL_T *const y_row = AT(y) + ((m_first + r + i) * groups + group) * N;
          for (int j = 0; j < T_NV; ++j) {
            const IDX_T n = n0 + j * T_VW;
            if (n >= N) break;
            const I sum = tile[i * T_NV + j] - zeros[j] * row_sum + starts[j];
            store_levels(y_row + n, LEVELS_OF(sum, factors[j]), N - n);
          }
        }
        r += count;
      }
    }
  }
}
