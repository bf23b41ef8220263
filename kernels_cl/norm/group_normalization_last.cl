// GroupNormalization with the channels last on CPU devices, float32: y = (x - mean) / sqrt(variance
// + epsilon) * scale + bias, with mean and variance over the positions and channels of a group.
//   x  read, y  written: [batches, size, channels]; y may alias x
//   scale, bias  read: [channels], or one element per group if PER_GROUP
//   stats     scratch, read and written: [batches, 3, channels]: mean, factor and shift
// One work-item per work-group. With `statistics` 1, a work-group computes `stats` of `span`
// channels (whole groups of group_channels) of one batch; with `rows` > 0 it then writes y of these
// channels at `rows` positions. One launch: statistics 1, rows = size. Two launches: statistics 1,
// rows 0, for all stats; then statistics 0, span = channels, for y, `rows` positions per work-group.
//   T_VW      lanes per vector
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: elementwise operations on the result, without operands
//               (common/finish.clh)
#include "common/base.clh"
#ifndef T_VW
#define T_VW 8
#define PER_GROUP 0
#define EPILOGUE_PARAMS
#define EPILOGUE_LOADS
#define EPILOGUE_BODY
#define EPILOGUE_RESULT v0
#endif
#define VW T_VW
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/rows.clh"
#include "common/finish.clh"
#include "common/large_mean.clh"

#define BLOCK_ROWS 512

// For each channel c in [0, n) of x [size, pitch]: adds to sums[c] the sum of x, or, if means is not
// NULL, of (x - means[c])^2. Four vectors at once, or four rows of a vector, hide the latency of
// additions.
__attribute__((always_inline))
static inline void add_rows(__global float *sums, __global const float *x,
                            __global const float *means, const IDX_T n, const IDX_T size,
                            const IDX_T pitch) {
#define MEAN(j) (means ? LOAD_F(means + c + (j) * VW) : (F)(0.0f))
#define ADD(i, row, j)                                      \
  {                                                         \
    const F v = LOAD_F(x + (row) * pitch + c + (j) * VW);   \
    const F from_mean = v - mean##j;                        \
    sum##i = means ? from_mean * from_mean + sum##i : sum##i + v; \
  }
#define ADD_TO_SUMS(j, v) STORE_F(sums + c + (j) * VW, LOAD_F(sums + c + (j) * VW) + (v));
#define START                                                               \
  F sum0 = (F)(0.0f), sum1 = (F)(0.0f), sum2 = (F)(0.0f), sum3 = (F)(0.0f); \
  const F mean0 = MEAN(0);
  IDX_T c = 0;
  for (; c + 4 * VW <= n; c += 4 * VW) {
    START
    const F mean1 = MEAN(1), mean2 = MEAN(2), mean3 = MEAN(3);
    for (IDX_T p = 0; p < size; ++p) { ADD(0, p, 0) ADD(1, p, 1) ADD(2, p, 2) ADD(3, p, 3) }
    ADD_TO_SUMS(0, sum0)
    ADD_TO_SUMS(1, sum1)
    ADD_TO_SUMS(2, sum2)
    ADD_TO_SUMS(3, sum3)
  }
  for (; c + VW <= n; c += VW) {
    START
    IDX_T p = 0;
    for (; p + 4 <= size; p += 4) { ADD(0, p, 0) ADD(1, p + 1, 0) ADD(2, p + 2, 0) ADD(3, p + 3, 0) }
    for (; p < size; ++p) ADD(0, p, 0)
    ADD_TO_SUMS(0, (sum0 + sum1) + (sum2 + sum3))
  }
  for (; c < n; ++c) {
    float sum = 0.0f;
    for (IDX_T p = 0; p < size; ++p) {
      const float d = x[p * pitch + c] - (means ? means[c] : 0.0f);
      sum += means ? d * d : d;
    }
    sums[c] += sum;
  }
}

// For each channel c in [0, n) of x [size, pitch]: sets sums[c] to the sum of x, or, if means is
// not NULL, of (x - means[c])^2. Summing blocks of BLOCK_ROWS rows keeps sums of large images
// accurate.
__attribute__((always_inline))
static inline void sum_channels(__global float *sums, __global const float *x,
                                __global const float *means, const IDX_T n, const IDX_T size,
                                const IDX_T pitch) {
  for (IDX_T c = 0; c < n; ++c) sums[c] = 0.0f;
  for (IDX_T p = 0; p < size; p += BLOCK_ROWS)
    add_rows(sums, x + p * pitch, means, n, i_min(BLOCK_ROWS, size - p), pitch);
}

#define LOAD_PART(p) load_columns(p, N - n)
#define NORMALIZE(LOAD)                                                                         \
  {                                                                                             \
    const F scaled = (LOAD(x_row + n) - LOAD(means + n)) * LOAD(factors + n) + LOAD(shifts + n); \
    FINISH_VECTOR(scaled)                                                                       \
  }

__kernel SINGLE_ITEM
void group_normalization_last(OUT(float, y), IN(float, x), IN(float, scale), IN(float, bias),
                              INOUT(float, stats), const IDX_T channels, const IDX_T group_channels,
                              const IDX_T size, const IDX_T span, const IDX_T rows,
                              const IDX_T statistics, const float epsilon EPILOGUE_PARAMS) {
  const IDX_T parts = (channels + span - 1) / span;
  const IDX_T chunks = rows ? (size + rows - 1) / rows : 1;
  const IDX_T batch = get_group_id(0) / parts / chunks;
  const IDX_T begin = get_group_id(0) / parts % chunks * rows;
  const IDX_T first = get_group_id(0) % parts * span;
  const IDX_T N = i_min(span, channels - first);
  __global const float *const from = AT(x) + batch * size * channels + first;
  __global float *const to = AT(y) + batch * size * channels + first;
  __global float *const means = AT(stats) + batch * 3 * channels + first;
  __global float *const factors = means + channels, *const shifts = factors + channels;
  const float elements = (float)(group_channels * size);
  if (statistics) {
    sum_channels(means, from, 0, N, size, channels);
    for (IDX_T g = 0; g < N; g += group_channels) {
      float mean = 0.0f;
      for (IDX_T c = g; c < g + group_channels; ++c) mean += means[c];
      mean /= elements;
      if (NOT_FINITE(mean)) {
#define FROM(i) from[(i) / group_channels * channels + g + (i) % group_channels]
        mean = LARGE_MEAN(group_channels * size, FROM);
      }
      for (IDX_T c = g; c < g + group_channels; ++c) means[c] = mean;
    }
    sum_channels(factors, from, means, N, size, channels);
    for (IDX_T g = 0; g < N; g += group_channels) {
      float variance = 0.0f;
      for (IDX_T c = g; c < g + group_channels; ++c) variance += factors[c];
      const float inverse = 1.0f / sqrt(variance / elements + epsilon);
      for (IDX_T c = g; c < g + group_channels; ++c) {
        const IDX_T own = PER_GROUP ? (first + c) / group_channels : first + c;
        factors[c] = inverse * AT(scale)[own];
        shifts[c] = AT(bias)[own];
      }
    }
  }
  for (IDX_T p = begin; p < UP_TO(begin, rows, size); ++p) {
    __global const float *const x_row = from + p * channels;
    __global float *const y_row = to + p * channels;
    IDX_T n = 0;
    for (; n + VW <= N; n += VW) NORMALIZE(LOAD_F)
    if (n < N) NORMALIZE(LOAD_PART)
  }
}
