// LayerNormalization and RMSNormalization: y = (x - mean) / sqrt(variance + epsilon) * scale +
// bias, with mean and variance of each row of n elements.
//   x  read, y  written: DATA_T [rows, n]. y may alias x: each row is read twice before the pass
//      that writes it
//   scale, bias  read: DATA_T [n]
//   mean_out, inverse_out  written if STATS: float32 [rows], the mean and the inverse standard
//                      deviation
//   layer_normalization_cpu    (VW > 1) float32, in vectors; a work-group of one work-item has
//                      T_ROWS rows
//   layer_normalization_group  (VW 1, T_ITEMS) any DATA_T; `lanes` work-items of a work-group of
//                      T_ITEMS share a row (common/group.clh), and load T_HELD elements each before
//                      they use the first
//   layer_normalization_any    (VW 1) any DATA_T; one work-item per row
//   RMS    1: the mean is not subtracted (RMSNormalization);  BIAS  1: there is a bias
//   VW, T_VW  lanes per vector; 1 for the kernels of any DATA_T
//   STATS  number of statistics outputs: 0; 1: mean_out; 2: mean_out and inverse_out
#include "common/base.clh"
#ifndef RMS
#define RMS 0
#define BIAS 1
#define STATS 0
#endif
#ifndef DATA_T
#define DATA_T float
#endif
#ifndef T_ROWS
#define T_ROWS 4
#define T_VW 8
#endif
#ifndef VW
#define VW T_VW
#endif
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/large_mean.clh"

#if BIAS
#define BIAS_INPUT , IN(DATA_T, bias)
#define BIAS_AT(i) LOAD(AT(bias), i)
#else
#define BIAS_INPUT
#define BIAS_AT(i) 0.0f
#endif
#if STATS == 1
#define STATS_OUTPUTS , OUT(float, mean_out)
#define STORE_STATS(row, mean, inverse) { AT(mean_out)[row] = mean; }
#elif STATS
#define STATS_OUTPUTS , OUT(float, mean_out), OUT(float, inverse_out)
#define STORE_STATS(row, mean, inverse) \
  { AT(mean_out)[row] = mean; AT(inverse_out)[row] = inverse; }
#else
#define STATS_OUTPUTS
#define STORE_STATS(row, mean, inverse) {}
#endif

#if VW == 1
#include "common/storage.clh"
#define FROM(i) LOAD(from, i)

#ifdef T_ITEMS
#include "common/group.clh"
#ifndef T_HELD
#define T_HELD 8
#endif
#define EACH_HELD(u) _Pragma("unroll") for (int u = 0; u < T_HELD; ++u)
#define EACH_RUN(first) for (IDX_T first = lane; first < end; first += T_HELD * lanes)
// Index of element u of the run from `first` on, or `first` if it is past the end.
#define HELD_AT(first, u) ((first) + (u)*lanes < end ? (first) + (u)*lanes : (first))
// Runs BODY for each element x of a lane.
#define EACH_ELEMENT(x, BODY)                                         \
  EACH_RUN(first_) {                                                  \
    float held_[T_HELD];                                              \
    EACH_HELD(u) held_[u] = FROM(HELD_AT(first_, u));                 \
    EACH_HELD(u) {                                                    \
      const float x = held_[u];                                       \
      if (first_ + u * lanes < end) { BODY }                          \
    }                                                                 \
  }

__kernel GROUP
void layer_normalization_group(OUT(DATA_T, y) STATS_OUTPUTS, IN(DATA_T, x),
                               IN(DATA_T, scale) BIAS_INPUT, const IDX_T rows, const IDX_T n,
                               const IDX_T lanes, const float epsilon) {
  __local float parts[T_ITEMS];
  GROUP_ROW(rows, n, lanes)
  __global const DATA_T *from = AT(x) + row * n;
  float mean = 0.0f, variance = 0.0f;
#if !RMS
  __local int overflows;
  if (get_local_id(0) == 0) overflows = 0;
  EACH_ELEMENT(x, mean += x;)
  GROUP_FOLD(mean, SUM_OF, parts, lanes)
  mean /= (float)n;
  // If a row of the group overflows, all rows are summed again, since all work-items take the
  // barriers.
  if (NOT_FINITE(mean)) overflows = 1;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (overflows) {
    float scaled = 0.0f;
    EACH_ELEMENT(x, scaled += x * LARGE_SCALE;)
    GROUP_FOLD(scaled, SUM_OF, parts, lanes)
    if (NOT_FINITE(mean)) mean = LARGE_MEAN_OF(scaled, n);
  }
#endif
  EACH_ELEMENT(v, variance = (v - mean) * (v - mean) + variance;)
  GROUP_FOLD(variance, SUM_OF, parts, lanes)
  const float inverse = 1.0f / sqrt(variance / (float)n + epsilon);
  EACH_RUN(first) {
    float held[T_HELD], scales[T_HELD], biases[T_HELD];
    EACH_HELD(u) {
      const IDX_T i = HELD_AT(first, u);
      held[u] = FROM(i);
      scales[u] = LOAD(AT(scale), i);
      biases[u] = BIAS_AT(i);
    }
    EACH_HELD(u) {
      const IDX_T i = first + u * lanes;
      if (i < end) STORE(AT(y), row * n + i, (held[u] - mean) * inverse * scales[u] + biases[u]);
    }
  }
  if (has_row && lane == 0) STORE_STATS(row, mean, inverse)
}

#else
__kernel void layer_normalization_any(OUT(DATA_T, y) STATS_OUTPUTS, IN(DATA_T, x),
                                      IN(DATA_T, scale) BIAS_INPUT, const IDX_T rows,
                                      const IDX_T n, const float epsilon) {
  const IDX_T row = get_global_id(0);
  if (row >= rows) return;
  __global const DATA_T *from = AT(x) + row * n;
  float mean = 0.0f, variance = 0.0f;
#if !RMS
  for (IDX_T i = 0; i < n; ++i) mean += LOAD(from, i);
  mean /= (float)n;
  if (NOT_FINITE(mean)) mean = LARGE_MEAN(n, FROM);
#endif
  for (IDX_T i = 0; i < n; ++i) {
    const float d = LOAD(from, i) - mean;
    variance = d * d + variance;
  }
  const float inverse = 1.0f / sqrt(variance / (float)n + epsilon);
  for (IDX_T i = 0; i < n; ++i) {
    const float v = (LOAD(from, i) - mean) * inverse * LOAD(AT(scale), i) + BIAS_AT(i);
    STORE(AT(y), row * n + i, v);
  }
  STORE_STATS(row, mean, inverse)
}
#endif

#else
#include "common/rows.clh"
#include "common/normalize_row.clh"

__kernel SINGLE_ITEM
void layer_normalization_cpu(OUT(float, y) STATS_OUTPUTS, IN(float, x),
                             IN(float, scale) BIAS_INPUT, const IDX_T rows, const IDX_T n,
                             const float epsilon) {
  const IDX_T first = get_group_id(0) * T_ROWS;
  const IDX_T end = i_min(first + T_ROWS, rows);
  for (IDX_T row = first; row < end; ++row) {
    const float2 stats = normalize_row(AT(y) + row * n, AT(x) + row * n, AT(scale), NORM_BIAS, n,
                                       epsilon);
    STORE_STATS(row, stats.x, stats.y)
  }
}
#endif
