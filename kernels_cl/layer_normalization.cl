// (x - mean) / sqrt(variance + epsilon) * scale + bias over rows of n elements.
//   RMS    no mean is taken off (RMSNormalization); BIAS, STATS: those tensors are there
//   HALF   tensors are float16 in memory (the statistics stay float32)
// Each row is read twice before the pass that writes it, so y may be x.
#include "common/base.clh"
#ifndef RMS
#define RMS 0
#define BIAS 1
#define STATS 0
#endif
#ifndef HALF
#define HALF 0
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

#if HALF
#define DATA_T half
#define LOAD(p, i) vload_half((i), (p))
#define STORE(p, i, v) vstore_half((v), (i), (p))
#else
#define DATA_T float
#define LOAD(p, i) ((p)[i])
#define STORE(p, i, v) (p)[i] = (v)
#endif
#if BIAS
#define BIAS_INPUT , IN(DATA_T, bias)
#define BIAS_AT(i) LOAD(AT(bias), i)
#else
#define BIAS_INPUT
#define BIAS_AT(i) 0.0f
#endif
#if STATS
#define STATS_OUTPUTS , OUT(float, mean_out), OUT(float, inverse_out)
#define STORE_STATS(row) { AT(mean_out)[row] = mean; AT(inverse_out)[row] = inverse; }
#else
#define STATS_OUTPUTS
#define STORE_STATS(row)
#endif

#if VW == 1
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
  STORE_STATS(row)
}

#else
#include "common/rows.clh"

#define AFFINE(v, i, READ) ((v) * READ(scale, i) PLUS_BIAS(i, READ))
#if BIAS
#define PLUS_BIAS(i, READ) + READ(bias, i)
#else
#define PLUS_BIAS(i, READ)
#endif
#define WHOLE(x, i) LOAD_F(AT(x) + i)
#define PART(x, i) load_lanes(AT(x) + i, n - i, 0.0f)

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void layer_normalization_cpu(OUT(float, y) STATS_OUTPUTS, IN(float, x),
                             IN(float, scale) BIAS_INPUT, const IDX_T rows, const IDX_T n,
                             const float epsilon) {
  const IDX_T whole = n / VW * VW;
  const IDX_T pairs = n / (2 * VW) * (2 * VW);
  const IDX_T first = get_group_id(0) * T_ROWS;
  const IDX_T end = i_min(first + T_ROWS, rows);
  for (IDX_T row = first; row < end; ++row) {
    __global const float *from = AT(x) + row * n;
    __global float *to = AT(y) + row * n;
    F average = (F)(0.0f);
#if !RMS
    F sum = load_lanes(from + whole, n - whole, 0.0f), other = (F)(0.0f);
    for (IDX_T i = 0; i < pairs; i += 2 * VW) {
      sum = sum + LOAD_F(from + i);
      other = other + LOAD_F(from + i + VW);
    }
    if (pairs < whole) other = other + LOAD_F(from + pairs);
    sum = sum + other;
    FOLD(sum, JOIN_SUM)
    average = sum / (F)(n);
#endif
    const float mean = average.s0;
    F d = load_lanes(from + whole, n - whole, mean) - average;
    F squares = d * d, more = (F)(0.0f);
    for (IDX_T i = 0; i < pairs; i += 2 * VW) {
      d = LOAD_F(from + i) - average;
      squares = d * d + squares;
      d = LOAD_F(from + i + VW) - average;
      more = d * d + more;
    }
    if (pairs < whole) {
      d = LOAD_F(from + pairs) - average;
      more = d * d + more;
    }
    squares = squares + more;
    FOLD(squares, JOIN_SUM)
    const float inverse = 1.0f / sqrt(squares.s0 / (float)n + epsilon);
    for (IDX_T i = 0; i < whole; i += VW)
      STORE_F(to + i, AFFINE((LOAD_F(from + i) - average) * inverse, i, WHOLE));
    if (whole < n) {
      d = load_lanes(from + whole, n - whole, mean) - average;
      store_lanes(to + whole, AFFINE(d * inverse, whole, PART), n - whole);
    }
    STORE_STATS(row)
  }
}
#endif
