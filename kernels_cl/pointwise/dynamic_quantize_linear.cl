// DynamicQuantizeLinear: quantizes float32 to uint8, with a scale and zero point from the range of
// the elements and 0 (common/dynamic_levels.clh).
//   x      read: float32 [n]
//   y      written: uint8 [n], round(x / scale) + zero point
//   scale  written: float32 [1];  zero  written: uint8 [1], the zero point
//   parts  float32 [count, 2], written by the first kernel: (minimum, maximum) of 0 and each chunk
//          of `chunk` elements
//   range_parts              writes parts; one work-item per chunk
//   dynamic_quantize_linear  writes y, scale and zero, with the range of all `count` parts; if
//                      count is 0, one work-item computes the range of all of x itself. One
//                      work-item per chunk
//   T_VW    lanes per vector
//   F_LENS  1: x is [T, B, input] with `width` elements per step of all B sequences, of lengths
//           lens [B]. The range is that of the steps of the longest sequence; y is unspecified at
//           later steps
#ifndef T_VW
#define T_VW 8
#endif
#ifndef F_LENS
#define F_LENS 0
#endif
#ifndef LENS_T
#define LENS_T int
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/widen.clh"
#include "common/dynamic_levels.clh"
#if CPU
#define ITEM SINGLE_ITEM
#else
#define ITEM
#endif
#if F_LENS
#define LENS_PARAM , IN(LENS_T, lens), const IDX_T B, const IDX_T width
#define LIVE(n)                              \
  LONGEST(longest, AT(lens), B, (n) / width) \
  const IDX_T live = longest * width;
#else
#define LENS_PARAM
#define LIVE(n) const IDX_T live = n;
#endif

__kernel ITEM
void range_parts(OUT(float, parts), IN(float, x), const IDX_T n,
                 const IDX_T chunk LENS_PARAM) {
  if (get_global_id(0) * chunk >= (size_t)n) return;
  LIVE(n)
  const IDX_T p = get_global_id(0), first = p * chunk;
  const float2 range = range_of(AT(x) + first, i_min(chunk, live - first));
  AT(parts)[2 * p] = range.s0;
  AT(parts)[2 * p + 1] = range.s1;
}

__kernel ITEM
void dynamic_quantize_linear(OUT(uchar, y), OUT(float, scale), OUT(uchar, zero), IN(float, x),
                             IN(float, parts), const IDX_T n, const IDX_T count,
                             const IDX_T chunk LENS_PARAM) {
  float low = 0.0f, high = 0.0f;
  for (IDX_T p = 0; p < count; ++p) {
    low = min(low, AT(parts)[2 * p]);
    high = max(high, AT(parts)[2 * p + 1]);
  }
  if (count == 0) {
    LIVE(n)
    const float2 range = range_of(AT(x), live);
    low = range.s0, high = range.s1;
  }
  const float step = scale_of_range((float2)(low, high));
  const float point = zero_of_range((float2)(low, high), step);
  if (get_global_id(0) == 0) {
    *AT(scale) = step;
    *AT(zero) = (uchar)point;
  }
  if (get_global_id(0) * chunk >= (size_t)n) return;
  const IDX_T first = get_global_id(0) * chunk, end = UP_TO(first, chunk, n);
  for (IDX_T i = first; i < end; i += VW) {
    const IDX_T places = i_min(end - i, VW);
    const F v = places == VW ? LOAD_F(AT(x) + i) : load_lanes(AT(x) + i, places, 0.0f);
    const F rounded = dynamic_levels(v, step, point);
    F unused;
    const I levels = c_round_int(rounded, &unused);
#if VW > 1
    if (places == VW) {
      *(__global WIDE_BYTES *)(AT(y) + i) = WIDE_AS(uchar, levels);
      continue;
    }
#endif
    for (IDX_T lane = 0; lane < places; ++lane) AT(y)[i + lane] = (uchar)((const int *)&levels)[lane];
  }
}
