// Resize along one axis of [outer, size, inner]: work-item (position in [outputs, inner], outer).
// INDICES holds the elements that each output is made of, WEIGHTS their shares.
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

#if COPY
__kernel void resize_copy(OUT(DATA_T, y), IN(DATA_T, x), IN(int, indices), const IDX_T size,
                          const IDX_T outputs, const IDX_T inner) {
  const IDX_T at = get_global_id(0), outer = get_global_id(1);
  if (at >= outputs * inner) return;
  const IDX_T k = at / inner;
  const IDX_T from = outer * size + AT(indices)[k];
  AT(y)[outer * outputs * inner + at] = AT(x)[from * inner + (at - k * inner)];
}

#else
__kernel void resize(OUT(OUT_T, y), IN(DATA_T, x), IN(int, indices),
                     IN(float, weights) VALUES_INPUT, const IDX_T size, const IDX_T outputs,
                     const IDX_T inner, const IDX_T taps) {
  const IDX_T at = get_global_id(0), outer = get_global_id(1);
  if (at >= outputs * inner) return;
  const IDX_T k = at / inner;
  const IDX_T i = at - k * inner;
  __global const int *const from = AT(indices) + k * taps;
  __global const float *const share = AT(weights) + k * taps;
  float sum = 0.0f;
#if EXTRAPOLATE
  sum = AT(values)[k];
#endif
  for (IDX_T t = 0; t < taps; ++t)
    sum += share[t] * LOAD(AT(x), (outer * size + from[t]) * inner + i);
  STORE_AS(OUT_STORAGE, AT(y), outer * outputs * inner + at, ROUND(sum));
}
#endif
