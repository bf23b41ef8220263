// Resize along one axis, or along the last two at once, by tables with the source elements and
// weights of each output index (element of y along the axis).
//   x  read: DATA_T [outer, size, inner], rows of `inner` elements x_pitch elements apart
//   y  written: [outer, outputs, inner], rows y_pitch elements apart
//   indices  read: int32 [outputs, taps], the `taps` source elements of each output index;  weights
//            read: float32 [outputs, taps]
//   resize_copy  (COPY) one source element each, without weights, any dtype; DATA_T is an unsigned
//                integer type of its size
//   resize       `taps` source elements each, computed in float32; with EXTRAPOLATE also values
//                float32 [outputs], which are added: the value of an output outside of x, whose
//                weights are 0
//   resize_planes, resize_planes_copy  CPUs: x [planes, size, width] along its last two axes at
//                      once, to y [planes, outputs_down, outputs], with tables `down` and `across`;
//                      a work-group of one work-item writes `height` of the `rows` rows of y. The
//                      rows of x of an output row are combined into a float32 `line`, then the line
//                      into a row of y
// One work-item of the first two per (output index * inner + i, outer); on CPUs per `share`
// elements of y, row by row of [outer * outputs, inner].
//   ROUND(v)     conversion of a float32 result before it is stored as OUT_T, storage OUT_STORAGE
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

// Precedes a statement that is run once per row, or piece of a row, of the work-item's share of y:
// declares `row` of [outer * outputs, inner], `outer`, the output index `k`, and the piece, `n`
// elements from element `i` of the row on.
#if CPU
#define PIECE 256
#define EACH_PIECE                                                                            \
  const IDX_T first = get_group_id(0) * share, end = min(first + share, rows * inner);        \
  IDX_T row = first / inner, outer = row / outputs, k = row - outer * outputs;                \
  for (IDX_T at = first, i = first - row * inner, n; n = min(inner - i, end - at), at < end;  \
       at += n, i = 0, ++row, k = k + 1 < outputs ? k + 1 : (++outer, 0))
#else
#define PIECE 1
#define EACH_PIECE                                                                            \
  const IDX_T at = get_global_id(0), outer = get_global_id(1), n = 1;                         \
  const IDX_T k = at / inner, i = at - k * inner, row = outer * outputs + k;                  \
  if (at < outputs * inner)
#endif

// to[i] = value + sum over t < taps of weights[t] * ROW(t)[i], for i < n; ROW(t) points to elements
// of x.
#define ADD_ROWS(to, n, value, taps, weights, ROW)                                            \
  if ((taps) == 2) {                                                                          \
    const float w0 = (weights)[0], w1 = (weights)[1], start = value;                          \
    __global const DATA_T *const r0 = ROW(0), *const r1 = ROW(1);                             \
    for (IDX_T i = 0; i < (n); ++i) (to)[i] = start + w0 * LOAD(r0, i) + w1 * LOAD(r1, i);    \
  } else {                                                                                    \
    for (IDX_T i = 0; i < (n); ++i) (to)[i] = value;                                          \
    for (IDX_T t = 0; t < (taps); ++t) {                                                      \
      const float w = (weights)[t];                                                           \
      __global const DATA_T *const r = ROW(t);                                                \
      for (IDX_T i = 0; i < (n); ++i) (to)[i] += w * LOAD(r, i);                              \
    }                                                                                         \
  }
#if CPU
#define PLANES                                                                                \
  const IDX_T size, const IDX_T width, const IDX_T outputs_down, const IDX_T outputs,         \
      const IDX_T rows, const IDX_T height
// Declares `plane` and `k`, the output row, of each row of y.
#define EACH_ROW                                                                              \
  const IDX_T begin = get_group_id(0) * height, end = min(begin + height, rows);              \
  IDX_T plane = begin / outputs_down, k = begin - plane * outputs_down;                       \
  for (IDX_T row = begin; row < end; ++row, k = k + 1 < outputs_down ? k + 1 : (++plane, 0))
#endif

#if COPY
__kernel void resize_copy(OUT(DATA_T, y), IN(DATA_T, x), IN(int, indices), const IDX_T size,
                          const IDX_T outputs, const IDX_T inner, const IDX_T rows,
                          const IDX_T x_pitch, const IDX_T y_pitch, const IDX_T share) {
  EACH_PIECE {
    __global const DATA_T *const from = AT(x) + (outer * size + AT(indices)[k]) * x_pitch + i;
    __global DATA_T *const to = AT(y) + row * y_pitch + i;
    for (IDX_T j = 0; j < n; ++j) to[j] = from[j];
  }
}

#if CPU
__kernel SINGLE_ITEM
void resize_planes_copy(OUT(DATA_T, y), IN(DATA_T, x), IN(int, down), IN(int, across), PLANES) {
  EACH_ROW {
    __global const DATA_T *const from = AT(x) + (plane * size + AT(down)[k]) * width;
    __global DATA_T *const to = AT(y) + row * outputs;
    if (row > begin && k > 0 && AT(down)[k] == AT(down)[k - 1]) {
      __global const DATA_T *const above = to - outputs;
      for (IDX_T i = 0; i < outputs; ++i) to[i] = above[i];
    } else {
      for (IDX_T i = 0; i < outputs; ++i) to[i] = from[AT(across)[i]];
    }
  }
}
#endif

#else
__kernel void resize(OUT(OUT_T, y), IN(DATA_T, x), IN(int, indices),
                     IN(float, weights) VALUES_INPUT, const IDX_T size, const IDX_T outputs,
                     const IDX_T inner, const IDX_T taps, const IDX_T rows, const IDX_T x_pitch,
                     const IDX_T y_pitch, const IDX_T share) {
  EACH_PIECE {
    __global const int *const places = AT(indices) + k * taps;
#if EXTRAPOLATE
    const float value = AT(values)[k];
#else
    const float value = 0.0f;
#endif
    for (IDX_T part = 0; part < n; part += PIECE) {
      float sums[PIECE];
      const IDX_T most = min(PIECE, n - part), to = row * y_pitch + i + part;
#define PIECE_OF_X(t) (AT(x) + (outer * size + places[t]) * x_pitch + i + part)
      ADD_ROWS(sums, most, value, taps, AT(weights) + k * taps, PIECE_OF_X)
      for (IDX_T j = 0; j < most; ++j) STORE_AS(OUT_STORAGE, AT(y), to + j, ROUND(sums[j]));
    }
  }
}

#if CPU
// Resizes planes along both axes at once, in float32. For each output row, `down` int32
// [outputs_down, down_taps] has the source rows, down_weights their weights, and down_values
// [outputs_down] a number that is added. For each output column likewise, but taps first: `across`
// and across_weights [across_taps, outputs], across_values [outputs]. lines [work-groups, width]
// is scratch: the weighted sum of source rows.
__kernel SINGLE_ITEM
void resize_planes(OUT(OUT_T, y), IN(DATA_T, x), OUT(float, lines), IN(int, down),
                   IN(float, down_weights), IN(float, down_values), IN(int, across),
                   IN(float, across_weights), IN(float, across_values), const IDX_T down_taps,
                   const IDX_T across_taps, PLANES) {
  __global float *const line = AT(lines) + get_group_id(0) * width;
  EACH_ROW {
    __global const int *const places = AT(down) + k * down_taps;
#define ROW_OF_X(t) (AT(x) + (plane * size + places[t]) * width)
    ADD_ROWS(line, width, AT(down_values)[k], down_taps, AT(down_weights) + k * down_taps, ROW_OF_X)
    const IDX_T to = row * outputs;
    __global const int *const from = AT(across);
    __global const float *const weights = AT(across_weights);
    if (across_taps == 2) {
      for (IDX_T i = 0; i < outputs; ++i)
        STORE_AS(OUT_STORAGE, AT(y), to + i,
                 ROUND(AT(across_values)[i] + weights[i] * line[from[i]] +
                       weights[outputs + i] * line[from[outputs + i]]));
    } else {
      for (IDX_T i = 0; i < outputs; ++i) {
        float sum = AT(across_values)[i];
        for (IDX_T t = 0; t < across_taps; ++t)
          sum += weights[t * outputs + i] * line[from[t * outputs + i]];
        STORE_AS(OUT_STORAGE, AT(y), to + i, ROUND(sum));
      }
    }
  }
}
#endif
#endif
