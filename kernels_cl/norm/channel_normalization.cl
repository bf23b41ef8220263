// BatchNormalization, GroupNormalization and InstanceNormalization: y = (x - mean) / sqrt(variance
// + epsilon) * scale + bias, with scale and bias per channel.
//   x  read, y  written: DATA_T [batches, channels, size]. y may alias x: each group is read twice
//      before the pass that writes it
//   scale, bias, mean, variance  read: STAT_T (storage STAT_STORAGE) [channels]
//   batch_normalization   mean and variance are inputs; one work-item per (element, channel, batch)
//   group_normalization   mean and variance are computed over each of `groups` groups of
//                      group_channels channels (InstanceNormalization: one channel each); one
//                      work-item per (group, batch)
//   batch_normalization_cpu, group_normalization_cpu  float32, in vectors of VW; a work-group of
//                      one work-item has `rows` channels, or groups, which are numbered through all
//                      batches
//   PER_GROUP  1: scale and bias have one element per group; 0: one per channel
//   VW, T_VW  lanes per vector; 1 for the kernels of any DATA_T
#include "common/base.clh"
#include "common/axes.clh"
#include "common/large_mean.clh"
#ifndef DATA_T
#define DATA_T float
#define STAT_T float
#define STAT_STORAGE plain
#endif
#ifndef PER_GROUP
#define PER_GROUP 0
#endif
#ifndef T_VW
#define T_VW 8
#endif
#ifndef VW
#define VW T_VW
#endif
#if VW == 1
#include "common/storage.clh"
#define STAT(p, i) LOAD_AS(STAT_STORAGE, p, i)
#define BLOCK 512

__kernel void batch_normalization(OUT(DATA_T, y), IN(DATA_T, x), IN(STAT_T, scale),
                                  IN(STAT_T, bias), IN(STAT_T, mean), IN(STAT_T, variance),
                                  const IDX_T batches, const IDX_T channels, const IDX_T size,
                                  const float epsilon) {
  GLOBAL_XYZ(i, c, b, size, channels)
  if (i >= size || c >= channels || (uint)b >= (uint)batches) return;
  const IDX_T at = (b * channels + c) * size + i;
  const float factor = STAT(AT(scale), c) / sqrt(STAT(AT(variance), c) + epsilon);
  STORE(AT(y), at, (LOAD(AT(x), at) - STAT(AT(mean), c)) * factor + STAT(AT(bias), c));
}

__kernel void group_normalization(OUT(DATA_T, y), IN(DATA_T, x), IN(STAT_T, scale),
                                  IN(STAT_T, bias), const IDX_T batches, const IDX_T groups,
                                  const IDX_T group_channels, const IDX_T size,
                                  const float epsilon) {
  const IDX_T g = get_global_id(0), b = get_global_id(1);
  if (g >= groups || b >= batches) return;
  const IDX_T first = (b * groups + g) * group_channels * size;
  const float n = (float)(group_channels * size);
  // Partial sums of BLOCK elements keep sums of large groups accurate.
  const IDX_T end = first + group_channels * size;
  float mean = 0.0f, variance = 0.0f;
  for (IDX_T begin = first; begin < end; begin += BLOCK) {
    float part = 0.0f;
    for (IDX_T i = begin; i < UP_TO(begin, BLOCK, end); ++i) part += LOAD(AT(x), i);
    mean += part;
  }
  mean /= n;
#define FROM(i) LOAD(AT(x), first + (i))
  if (NOT_FINITE(mean)) mean = LARGE_MEAN(group_channels * size, FROM);
  for (IDX_T begin = first; begin < end; begin += BLOCK) {
    float part = 0.0f;
    for (IDX_T i = begin; i < UP_TO(begin, BLOCK, end); ++i) {
      const float d = LOAD(AT(x), i) - mean;
      part = d * d + part;
    }
    variance += part;
  }
  const float inverse = 1.0f / sqrt(variance / n + epsilon);
  for (IDX_T c = 0; c < group_channels; ++c) {
    const IDX_T own = PER_GROUP ? g : g * group_channels + c;
    const float factor = inverse * STAT(AT(scale), own), shift = STAT(AT(bias), own);
    for (IDX_T i = 0; i < size; ++i) {
      const IDX_T at = first + c * size + i;
      STORE(AT(y), at, (LOAD(AT(x), at) - mean) * factor + shift);
    }
  }
}

#else
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/rows.clh"
#include "common/row_moments.clh"

// Normalizes a row of n elements: to[i] = (from[i] - mean) * factor + shift.
static inline void scale_row(__global float *to, __global const float *from, const IDX_T n,
                             const float mean, const float factor, const float shift) {
  const IDX_T whole = n / VW * VW;
  for (IDX_T i = 0; i < whole; i += VW)
    STORE_F(to + i, (LOAD_F(from + i) - (F)(mean)) * (F)(factor) + (F)(shift));
  for (IDX_T i = whole; i < n; ++i) to[i] = (from[i] - mean) * factor + shift;
}

__kernel SINGLE_ITEM
void batch_normalization_cpu(OUT(float, y), IN(float, x), IN(float, scale), IN(float, bias),
                             IN(float, mean), IN(float, variance), const IDX_T batches,
                             const IDX_T channels, const IDX_T size, const float epsilon,
                             const IDX_T rows) {
  const IDX_T first = get_group_id(0) * rows;
  const IDX_T end = i_min(first + rows, batches * channels);
  for (IDX_T row = first; row < end; ++row) {
    const IDX_T c = row % channels;
    const float factor = AT(scale)[c] / sqrt(AT(variance)[c] + epsilon);
    scale_row(AT(y) + row * size, AT(x) + row * size, size, AT(mean)[c], factor, AT(bias)[c]);
  }
}

__kernel SINGLE_ITEM
void group_normalization_cpu(OUT(float, y), IN(float, x), IN(float, scale), IN(float, bias),
                             const IDX_T batches, const IDX_T groups, const IDX_T group_channels,
                             const IDX_T size, const float epsilon, const IDX_T rows) {
  const IDX_T first = get_group_id(0) * rows;
  const IDX_T end = i_min(first + rows, batches * groups);
  for (IDX_T row = first; row < end; ++row) {
    const IDX_T begin = row * group_channels * size, g = row % groups;
    const float2 moments = row_moments(AT(x) + begin, group_channels * size, epsilon);
    for (IDX_T c = 0; c < group_channels; ++c) {
      const IDX_T own = PER_GROUP ? g : g * group_channels + c, at = begin + c * size;
      const float factor = moments.y * AT(scale)[own];
      scale_row(AT(y) + at, AT(x) + at, size, moments.x, factor, AT(bias)[own]);
    }
  }
}
#endif
