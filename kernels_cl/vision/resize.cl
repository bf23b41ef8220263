// Resize along one axis of [outer, size, inner]: work-item (position in [outputs, inner], outer); on CPUs
// one with `share` elements of y, row by row of [outer * outputs, inner].
// INDICES holds the elements that each output is made of, WEIGHTS their shares.
//   x_pitch, y_pitch  from `inner` elements of x, or of y, to the next: other tensors may lie between
//   resize_copy  one element each, whatever its dtype
//   resize       `taps` elements each, computed in float32; EXTRAPOLATE: an output that lies outside
//                has no weights but a value, in `values`
#include "common/base.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define OUT_T float
#define OUT_STORAGE plain
#define ROUND(v) (v)
#define EXTRAPOLATE 0
#define COPY 0
#endif
#if EXTRAPOLATE
#define VALUES_INPUT , IN(float, values)
#else
#define VALUES_INPUT
#endif

// Declares `row` of [outer * outputs, inner], `outer`, `k`, the output along the axis, and `i`.
#if CPU
#define EACH_ELEMENT                                                                          \
  const IDX_T first = get_group_id(0) * share, end = min(first + share, rows * inner);        \
  IDX_T row = first / inner, outer = row / outputs, k = row - outer * outputs, stop;          \
  for (IDX_T at = first, from = first - row * inner; at < end;                                \
       at += stop - from, from = 0, ++row, k = k + 1 < outputs ? k + 1 : (++outer, 0))        \
    for (IDX_T i = (stop = min(inner, from + end - at), from); i < stop; ++i)
#else
#define EACH_ELEMENT                                                                          \
  const IDX_T at = get_global_id(0), outer = get_global_id(1);                                \
  const IDX_T k = at / inner, i = at - k * inner, row = outer * outputs + k;                  \
  if (at < outputs * inner)
#endif

#if COPY
__kernel void resize_copy(OUT(DATA_T, y), IN(DATA_T, x), IN(int, indices), const IDX_T size,
                          const IDX_T outputs, const IDX_T inner, const IDX_T rows,
                          const IDX_T x_pitch, const IDX_T y_pitch, const IDX_T share) {
  EACH_ELEMENT AT(y)[row * y_pitch + i] = AT(x)[(outer * size + AT(indices)[k]) * x_pitch + i];
}

#else
__kernel void resize(OUT(OUT_T, y), IN(DATA_T, x), IN(int, indices),
                     IN(float, weights) VALUES_INPUT, const IDX_T size, const IDX_T outputs,
                     const IDX_T inner, const IDX_T taps, const IDX_T rows, const IDX_T x_pitch,
                     const IDX_T y_pitch, const IDX_T share) {
  EACH_ELEMENT {
#if EXTRAPOLATE
    float sum = AT(values)[k];
#else
    float sum = 0.0f;
#endif
    __global const int *const from_x = AT(indices) + k * taps;
    for (IDX_T t = 0; t < taps; ++t)
      sum += AT(weights)[k * taps + t] * LOAD(AT(x), (outer * size + from_x[t]) * x_pitch + i);
    STORE_AS(OUT_STORAGE, AT(y), row * y_pitch + i, ROUND(sum));
  }
}
#endif
