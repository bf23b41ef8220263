// Col2Im: adds the columns of a matrix up into the image elements that they came from, plus an
// optional bias per channel (common/bias.clh). Each of the K = w0 * w1 * w2 window elements at each
// position maps to an element of the image, or to the padding, which is dropped.
//   x  read: DATA_T [images * channels][K][positions];  y  written: DATA_T [images * channels, o0,
//      o1, o2]
//   planes  images * channels
//   Geometry, one argument per spatial axis 0 to 2: o: sizes of the image; p: numbers of positions;
//     w: window; st: strides; dl: dilations; b: padding before
//   col2im       (GPUs) one work-item per (column, row, plane) of y: sums all elements of x that
//                map to one element of y
//   col2im_rows  (CPUs) a work-group of one work-item computes `height` rows of y, which are
//                numbered through all planes, up to PIECE elements of a row at a time
//   DATA_T  storage type of x and y;  VALUE_T  type computed in
#include "common/base.clh"
#include "common/axes.clh"
#include "common/bias.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define VALUE_T float
#endif

// Returns the window position p along one axis with p * stride == from; -1 if there is none in
// 0..count-1. `from` is the image coordinate plus padding minus the window element's offset.
static inline IDX_T position(const IDX_T from, const IDX_T stride, const IDX_T count) {
  if (from < 0) return -1;
  const IDX_T p = from / stride;
  return p * stride == from && p < count ? p : -1;
}

#define WINDOWS PARAMS_3(o), PARAMS_3(p), PARAMS_3(w), PARAMS_3(st), PARAMS_3(dl), PARAMS_3(b)
#if !CPU
__kernel void col2im(OUT(DATA_T, y), IN(DATA_T, x) BIAS_INPUT, const IDX_T planes,
                     const IDX_T channels, WINDOWS) {
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

#else
#define PIECE 256
// Returns the number of window positions p >= 0 along one axis with p * stride < from.
static inline IDX_T positions_before(const IDX_T from, const IDX_T stride) {
  return from <= 0 ? 0 : stride == 1 ? from : (from - 1) / stride + 1;
}

__kernel SINGLE_ITEM
void col2im_rows(OUT(DATA_T, y), IN(DATA_T, x) BIAS_INPUT, const IDX_T planes,
                 const IDX_T channels, const IDX_T height, WINDOWS) {
  const IDX_T begin = (IDX_T)get_group_id(0) * height, end = min(begin + height, planes * o0 * o1);
  for (IDX_T row = begin; row < end; ++row) {
    // No %, which LLVM would merge with / by a `freeze` that Oclgrind cannot run.
    const IDX_T upper = row / o1, plane = upper / o0, image = plane / channels;
    const IDX_T i0 = upper - plane * o0, i1 = row - upper * o1;
    const VALUE_T bias_value = BIAS_OF(plane - image * channels);
    for (IDX_T i2 = 0; i2 < o2; i2 += PIECE) {
      const IDX_T n = min(PIECE, o2 - i2);
      VALUE_T sums[PIECE];
      for (IDX_T i = 0; i < n; ++i) sums[i] = bias_value;
      for (IDX_T k0 = 0; k0 < w0; ++k0) {
        const IDX_T q0 = position(i0 + b0 - k0 * dl0, st0, p0);
        for (IDX_T k1 = 0; k1 < w1 && q0 >= 0; ++k1) {
          const IDX_T q1 = position(i1 + b1 - k1 * dl1, st1, p1);
          for (IDX_T k2 = 0; k2 < w2 && q1 >= 0; ++k2) {
            const IDX_T column = (plane * w0 + k0) * w1 * w2 + k1 * w2 + k2;
            const IDX_T from = ((column * p0 + q0) * p1 + q1) * p2, shift = k2 * dl2 - b2 - i2;
            const IDX_T first = positions_before(-shift, st2);
            const IDX_T last = min(p2, positions_before(n - shift, st2));
            if (st2 == 1)
              for (IDX_T q = first; q < last; ++q) sums[q + shift] += LOAD(AT(x), from + q);
            else
              for (IDX_T q = first; q < last; ++q) sums[q * st2 + shift] += LOAD(AT(x), from + q);
          }
        }
      }
      for (IDX_T i = 0; i < n; ++i) STORE(AT(y), row * o2 + i2 + i, sums[i]);
    }
  }
}
#endif
