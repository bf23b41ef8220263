// ResizeImage: resamples an image of bytes as Pillow does, in integers: first along rows, to bytes,
// in planes uint8 [3, height, outputs], then down columns, to floats in a batch of images.
//   pixels                        read: uint8 [height, width, 3]
//   columns, rows                 read: int32 [outputs], [outputs_down]: first source pixel of each
//                      output, which has `taps` of them
//   column_weights, row_weights   read: int32 [outputs, taps], [outputs_down, taps], in units of
//                      2^-22
//   colours                       read: float32 [3, 3]: scale, offset, and value of the border, per
//                      channel
//   place                         read: int32 [3]: image of the batch, row and column of the
//                      result's upper left corner in it
//   batch                         written: float32 [images, 3 * high * wide], channels first or
//                      last
// Numbers out of range are clamped and reported in status, place_status. Kernels, selected by PART:
// 0 image_columns (GPUs, along rows), 1 image_lanes (CPUs, weights for 2) and 2 image_columns_cpu
// (CPUs, along rows), 3 image_rows (GPUs, down columns), 4 image_rows_cpu (CPUs, down columns).
// Work-items are described at each kernel.
#include "common/base.clh"
#include "common/index.clh"
// A program has only the kernel selected by PART; if PART is not defined, all of them.
#ifndef PART
#define PART -1
#endif
#define HAS(part) (PART < 0 || PART == part)
#define BITS 22
// PoCL makes a call of each vload and convert.
typedef uchar4 __attribute__((aligned(1))) BYTES4;
typedef uchar8 __attribute__((aligned(1))) BYTES8;
typedef int4 __attribute__((aligned(4))) INTS4;
typedef int8 __attribute__((aligned(4))) INTS8;
typedef float8 __attribute__((aligned(4))) FLOATS8;
#define READ(T, p) (*(__global const T *)(p))
#if defined(__has_builtin) && !defined(SIMULATOR)
#if __has_builtin(__builtin_convertvector)
#define WIDEN(T, v) __builtin_convertvector(v, T)
#endif
#endif
#ifndef WIDEN
#define WIDEN(T, v) convert_##T(v)
#endif
#define HALF (1 << (BITS - 1))

#define TO_BYTE(sum) convert_uchar_sat((sum) >> BITS)

#if HAS(0)
// Resamples each row of `pixels` to `outputs` pixels, and writes them to `planes`, by channel. One
// work-item per (output column, row).
__kernel void image_columns(OUT(uchar, planes), IN(uchar, pixels), IN(int, columns),
                            IN(int, column_weights), OUT(long, status), const IDX_T width,
                            const IDX_T height, const IDX_T outputs, const IDX_T taps) {
  const IDX_T k = get_global_id(0), row = get_global_id(1);
  if (k >= outputs) return;
  const IDX_T first = clrt_length(AT(columns)[k], width - taps, AT(status));
  __global const uchar *p = AT(pixels) + (row * width + first) * 3;
  __global const int *w = AT(column_weights) + k * taps;
  int red = HALF, green = HALF, blue = HALF;
  for (IDX_T t = 0; t < taps; ++t) {
    red += p[3 * t] * w[t];
    green += p[3 * t + 1] * w[t];
    blue += p[3 * t + 2] * w[t];
  }
  const IDX_T plane = height * outputs;
  __global uchar *to = AT(planes) + row * outputs + k;
  to[0] = TO_BYTE(red);
  to[plane] = TO_BYTE(green);
  to[2 * plane] = TO_BYTE(blue);
}
#endif

#if HAS(1)
// Expands column_weights for image_columns_cpu, which reads whole groups of four pixels (12
// bytes): lanes int32 [outputs, vectors * 12] has a weight per byte of the `vectors` groups of an
// output, 0 for pixels that are none of its taps. firsts int32 [outputs] is the first pixel of the
// groups, moved back if they would exceed the row. One work-item per (byte, output).
__kernel void image_lanes(OUT(int, lanes), OUT(int, firsts), IN(int, columns), IN(int, column_weights),
                          OUT(long, status), const IDX_T width, const IDX_T taps,
                          const IDX_T vectors) {
  const IDX_T at = get_global_id(0), k = get_global_id(1);
  if (at >= vectors * 12) return;
  const IDX_T first = clrt_length(AT(columns)[k], width - taps, AT(status));
  const IDX_T last = width - vectors * 4;
  const IDX_T from = first < last ? first : last;
  const IDX_T tap = at / 3 - (first - from);
  AT(lanes)[k * vectors * 12 + at] =
      tap >= 0 && tap < taps ? AT(column_weights)[k * taps + tap] : 0;
  if (at == 0) AT(firsts)[k] = from;
}
#endif

#if HAS(2)
// Multiplies the 12 bytes of group j (four pixels) of row i by their weights; adds the products of
// bytes 0 to 7 to low<i>, of bytes 8 to 11 to high<i>. CLEAR declares these sums, WRITE writes the
// pixel that they give, and WEIGHTS declares the weights.
#define MULTIPLY(i)                                                                       \
  low##i += WIDEN(int8, READ(BYTES8, p##i + 12 * j)) * low;                                 \
  high##i += WIDEN(int4, READ(BYTES4, p##i + 12 * j + 8)) * high;
#define CLEAR(i)                                                                          \
  int8 low##i = 0;                                                                        \
  int4 high##i = 0;
#define WRITE(i)                                                                          \
  {                                                                                       \
    __global uchar *to = AT(planes) + (row + i) * outputs + k;                            \
    to[0] = TO_BYTE(HALF + low##i.s0 + low##i.s3 + low##i.s6 + high##i.s1);               \
    to[plane] = TO_BYTE(HALF + low##i.s1 + low##i.s4 + low##i.s7 + high##i.s2);           \
    to[2 * plane] = TO_BYTE(HALF + low##i.s2 + low##i.s5 + high##i.s0 + high##i.s3);      \
  }
#define WEIGHTS                                                                           \
  const int8 low = READ(INTS8, w + 12 * j);                                                 \
  const int4 high = READ(INTS4, w + 12 * j + 8);

// Resamples rows of `pixels` to `planes`, as image_columns does, on CPUs: four rows at a time, with
// `lanes` and `firsts` from image_lanes. A work-group of one work-item has `block` rows of pixels.
__kernel SINGLE_ITEM
void image_columns_cpu(OUT(uchar, planes), IN(uchar, pixels), IN(int, lanes), IN(int, firsts),
                       const IDX_T width, const IDX_T height, const IDX_T outputs,
                       const IDX_T vectors, const IDX_T block) {
  const IDX_T plane = height * outputs;
  const IDX_T begin = (IDX_T)get_global_id(0) * block;
  const IDX_T end = begin + block < height ? begin + block : height;
  IDX_T row = begin;
  for (; row + 4 <= end; row += 4)
    for (IDX_T k = 0; k < outputs; ++k) {
      __global const uchar *p0 = AT(pixels) + (row * width + AT(firsts)[k]) * 3;
      __global const uchar *p1 = p0 + width * 3, *p2 = p1 + width * 3, *p3 = p2 + width * 3;
      __global const int *w = AT(lanes) + k * vectors * 12;
      CLEAR(0) CLEAR(1) CLEAR(2) CLEAR(3)
      for (IDX_T j = 0; j < vectors; ++j) {
        WEIGHTS
        MULTIPLY(0) MULTIPLY(1) MULTIPLY(2) MULTIPLY(3)
      }
      WRITE(0) WRITE(1) WRITE(2) WRITE(3)
    }
  for (; row < end; ++row)
    for (IDX_T k = 0; k < outputs; ++k) {
      __global const uchar *p0 = AT(pixels) + (row * width + AT(firsts)[k]) * 3;
      __global const int *w = AT(lanes) + k * vectors * 12;
      CLEAR(0)
      for (IDX_T j = 0; j < vectors; ++j) {
        WEIGHTS
        MULTIPLY(0)
      }
      WRITE(0)
    }
}
#endif

// `high` and `wide` are the sizes of an image of the batch, step_c, step_y and step_x its strides
// in elements of channels, rows and columns. LINE is the offset of row y of channel c.
#define LINE(image, c, y) (((image) * 3 * high * wide) + (c) * step_c + (y) * step_y)
#define PLACE(axis, most) clrt_length(AT(place)[axis], most, AT(place_status))
#define ROW_PARAMS                                                                        \
  OUT(float, batch), IN(uchar, planes), IN(int, rows), IN(int, row_weights), IN(float, colours), \
      IN(int, place), OUT(long, status), OUT(long, place_status), const IDX_T images,     \
      const IDX_T high, const IDX_T wide, const IDX_T height, const IDX_T outputs,        \
      const IDX_T outputs_down, const IDX_T taps, const IDX_T step_c, const IDX_T step_y, \
      const IDX_T step_x

static inline int sum_of_column(__global const uchar *p, __global const int *w, const IDX_T pitch,
                                const IDX_T taps) {
  int sum = HALF;
  for (IDX_T t = 0; t < taps; ++t) sum += p[t * pitch] * w[t];
  return sum;
}

#if HAS(3)
// Resamples `planes` down columns, and writes an image of the batch: the result at its place, and
// the colour of the border around it. One work-item per (column, row, channel) of the image.
__kernel void image_rows(ROW_PARAMS) {
  const IDX_T x = get_global_id(0), y = get_global_id(1), c = get_global_id(2);
  if (x >= wide) return;
  const IDX_T image = PLACE(0, images - 1);
  const IDX_T k = y - PLACE(1, high - outputs_down), i = x - PLACE(2, wide - outputs);
  float value = AT(colours)[6 + c];
  if (k >= 0 && k < outputs_down && i >= 0 && i < outputs) {
    const IDX_T first = clrt_length(AT(rows)[k], height - taps, AT(status));
    __global const uchar *p = AT(planes) + (c * height + first) * outputs + i;
    const int sum = sum_of_column(p, AT(row_weights) + k * taps, outputs, taps);
    value = TO_BYTE(sum) * AT(colours)[c] + AT(colours)[3 + c];
  }
  AT(batch)[LINE(image, c, y) + x * step_x] = value;
}
#endif

#if HAS(4)
// Resamples `planes` down columns, as image_rows does, on CPUs. Work-group (y, c) of one work-item
// writes row y of channel c of an image of the batch, border included. Columns are resampled in
// vectors of 8; the last vector ends at the last column, so it may overlap the previous one.
__kernel SINGLE_ITEM
void image_rows_cpu(ROW_PARAMS) {
  const IDX_T y = get_global_id(0), c = get_global_id(1);
  const IDX_T image = PLACE(0, images - 1), left = PLACE(2, wide - outputs);
  const IDX_T k = y - PLACE(1, high - outputs_down);
  __global float *const line = AT(batch) + LINE(image, c, y);
  const bool inside = k >= 0 && k < outputs_down;
  const IDX_T begin = inside ? left : wide, end = inside ? left + outputs : wide;
  for (IDX_T x = 0; x < begin; ++x) line[x * step_x] = AT(colours)[6 + c];
  for (IDX_T x = end; x < wide; ++x) line[x * step_x] = AT(colours)[6 + c];
  if (!inside) return;
  const float scale = AT(colours)[c], more = AT(colours)[3 + c];
  const IDX_T first = clrt_length(AT(rows)[k], height - taps, AT(status));
  __global const uchar *const p = AT(planes) + (c * height + first) * outputs;
  __global const int *const w = AT(row_weights) + k * taps;
  __global float *const to = line + left * step_x;
  if (outputs < 8) {
    for (IDX_T x = 0; x < outputs; ++x)
      to[x * step_x] = TO_BYTE(sum_of_column(p + x, w, outputs, taps)) * scale + more;
    return;
  }
  // PoCL cannot load a kernel with vectors of 16 floats from its cache with AVX2 only.
  for (IDX_T next = 0; next < outputs; next += 8) {
    const IDX_T x = next + 8 <= outputs ? next : outputs - 8;
    int8 sum = HALF;
    for (IDX_T t = 0; t < taps; ++t) sum += WIDEN(int8, READ(BYTES8, p + t * outputs + x)) * w[t];
    const float8 value = WIDEN(float8, clamp(sum >> BITS, (int8)(0), (int8)(255))) * scale + more;
    if (step_x == 1) {
      *(__global FLOATS8 *)(to + x) = value;
      continue;
    }
    to[x * step_x] = value.s0;
    to[(x + 1) * step_x] = value.s1;
    to[(x + 2) * step_x] = value.s2;
    to[(x + 3) * step_x] = value.s3;
    to[(x + 4) * step_x] = value.s4;
    to[(x + 5) * step_x] = value.s5;
    to[(x + 6) * step_x] = value.s6;
    to[(x + 7) * step_x] = value.s7;
  }
}
#endif
