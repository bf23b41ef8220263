// x as levels 0 to 255, where scale and zero point are those of the range of x and 0. A work-item has `chunk`
// elements.
//   range_parts              its least and its largest element, or 0, into parts
//   dynamic_quantize_linear  y; the range is that of `count` parts, or where that is 0 of all of x, and then
//                            there is one work-item
#ifndef T_VW
#define T_VW 8
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/widen.clh"
#if CPU
#define ITEM SINGLE_ITEM
#else
#define ITEM
#endif
#define LESSER(a, b) PICK((a) < (b), a, b)
#define LARGER(a, b) PICK((a) > (b), a, b)

// The range of n elements and 0.
static inline float2 range_of(__global const float *x, const IDX_T n) {
  F low = (F)(0.0f), high = (F)(0.0f);
  for (IDX_T i = 0; i < n; i += VW) {
    const F v = n - i >= VW ? LOAD_F(x + i) : load_lanes(x + i, n - i, 0.0f);
    low = LESSER(v, low);
    high = LARGER(v, high);
  }
  FOLD(low, LESSER)
  FOLD(high, LARGER)
  return (float2)(((const float *)&low)[0], ((const float *)&high)[0]);
}

__kernel ITEM
void range_parts(OUT(float, parts), IN(float, x), const IDX_T n, const IDX_T chunk) {
  if (get_global_id(0) * chunk >= (size_t)n) return;
  const IDX_T p = get_global_id(0), first = p * chunk;
  const float2 range = range_of(AT(x) + first, i_min(chunk, n - first));
  AT(parts)[2 * p] = range.s0;
  AT(parts)[2 * p + 1] = range.s1;
}

__kernel ITEM
void dynamic_quantize_linear(OUT(uchar, y), OUT(float, scale), OUT(uchar, zero), IN(float, x),
                             IN(float, parts), const IDX_T n, const IDX_T count, const IDX_T chunk) {
  float low = 0.0f, high = 0.0f;
  for (IDX_T p = 0; p < count; ++p) {
    low = min(low, AT(parts)[2 * p]);
    high = max(high, AT(parts)[2 * p + 1]);
  }
  if (count == 0) {
    const float2 range = range_of(AT(x), n);
    low = range.s0, high = range.s1;
  }
  const float step = low == high ? 1.0f : (high - low) / 255.0f;
  const float point = rint(clamp(0.0f - low / step, 0.0f, 255.0f));
  if (get_global_id(0) == 0) {
    *AT(scale) = step;
    *AT(zero) = (uchar)point;
  }
  if (get_global_id(0) * chunk >= (size_t)n) return;
  const IDX_T first = get_global_id(0) * chunk, end = UP_TO(first, chunk, n);
  for (IDX_T i = first; i < end; i += VW) {
    const IDX_T places = i_min(end - i, VW);
    F v = (places == VW ? LOAD_F(AT(x) + i) : load_lanes(AT(x) + i, places, 0.0f)) / step;
    v = PICK(v > (F)(-512.0f), v, (F)(-512.0f));
    v = PICK(v < (F)(512.0f), v, (F)(512.0f));
    F rounded;
    c_round_int(v, &rounded);
    rounded += point;
    rounded = PICK(rounded > (F)(0.0f), rounded, (F)(0.0f));
    rounded = PICK(rounded < (F)(255.0f), rounded, (F)(255.0f));
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
