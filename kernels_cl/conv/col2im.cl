// Adds columns up to images: [images * channels][K][positions] to [images * channels, o0, o1, o2],
// where each place in the window (K of them) of each position has an element of the image.
// Work-item (column, row, plane) gathers what falls on one element.
#include "common/base.clh"
#include "common/axes.clh"
#include "common/bias.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define VALUE_T float
#endif

// The position whose window has its k-th place on an element, -1 where none has.
static inline IDX_T position(const IDX_T from, const IDX_T stride, const IDX_T count) {
  if (from < 0) return -1;
  const IDX_T p = from / stride;
  return p * stride == from && p < count ? p : -1;
}

// o: sizes of the image; p: numbers of positions; w: window; st: strides; dl: dilations; b: padding
// before.
__kernel void col2im(OUT(DATA_T, y), IN(DATA_T, x) BIAS_INPUT, const IDX_T planes,
                     const IDX_T channels, THREE(o), THREE(p), THREE(w), THREE(st), THREE(dl),
                     THREE(b)) {
  const IDX_T i2 = get_global_id(0), row = get_global_id(1), plane = get_global_id(2);
  if (i2 >= o2) return;
  const IDX_T i0 = row / o1;
  const IDX_T i1 = row - i0 * o1;
  const IDX_T positions = p0 * p1 * p2;
  __global const DATA_T *const columns = AT(x) + plane * w0 * w1 * w2 * positions;
  VALUE_T sum = BIAS_OF(plane % channels);
  for (IDX_T k0 = 0; k0 < w0; ++k0) {
    const IDX_T q0 = position(i0 + b0 - k0 * dl0, st0, p0);
    if (q0 < 0) continue;
    for (IDX_T k1 = 0; k1 < w1; ++k1) {
      const IDX_T q1 = position(i1 + b1 - k1 * dl1, st1, p1);
      if (q1 < 0) continue;
      for (IDX_T k2 = 0; k2 < w2; ++k2) {
        const IDX_T q2 = position(i2 + b2 - k2 * dl2, st2, p2);
        if (q2 < 0) continue;
        const IDX_T k = (k0 * w1 + k1) * w2 + k2;
        sum += LOAD(columns, k * positions + (q0 * p1 + q1) * p2 + q2);
      }
    }
  }
  STORE(AT(y), (plane * o0 * o1 + row) * o2 + i2, sum);
}
