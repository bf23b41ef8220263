// Normalisations of [N, C, ...] with a scale and a bias by channel (or by group of channels).
//   batch_normalization   with given means and variances
//   group_normalization   each group of channels with its own; InstanceNormalization: groups of one
// Each group is read twice before the pass that writes it, so y may be x.
#include "common/base.clh"
#ifndef HALF
#define HALF 0
#define STAT_HALF 0
#endif
#ifndef PER_GROUP
#define PER_GROUP 0
#endif
#if HALF
#define DATA_T half
#define LOAD(p, i) vload_half((i), (p))
#define STORE(i, v) vstore_half((v), (i), AT(y))
#else
#define DATA_T float
#define LOAD(p, i) ((p)[i])
#define STORE(i, v) AT(y)[i] = (v)
#endif
#if STAT_HALF
#define STAT_T half
#define STAT(p, i) vload_half((i), (p))
#else
#define STAT_T float
#define STAT(p, i) ((p)[i])
#endif

__kernel void batch_normalization(OUT(DATA_T, y), IN(DATA_T, x), IN(STAT_T, scale),
                                  IN(STAT_T, bias), IN(STAT_T, mean), IN(STAT_T, variance),
                                  const IDX_T batches, const IDX_T channels, const IDX_T size,
                                  const float epsilon) {
  const IDX_T i = get_global_id(0), c = get_global_id(1), b = get_global_id(2);
  if (i >= size || c >= channels || b >= batches) return;
  const IDX_T at = (b * channels + c) * size + i;
  const float factor = STAT(AT(scale), c) / sqrt(STAT(AT(variance), c) + epsilon);
  STORE(at, (LOAD(AT(x), at) - STAT(AT(mean), c)) * factor + STAT(AT(bias), c));
}

__kernel void group_normalization(OUT(DATA_T, y), IN(DATA_T, x), IN(STAT_T, scale),
                                  IN(STAT_T, bias), const IDX_T batches, const IDX_T groups,
                                  const IDX_T group_channels, const IDX_T size,
                                  const float epsilon) {
  const IDX_T g = get_global_id(0), b = get_global_id(1);
  if (g >= groups || b >= batches) return;
  const IDX_T first = (b * groups + g) * group_channels * size;
  const float n = (float)(group_channels * size);
  // A partial sum per channel: the error grows with the size of a channel, not of a group.
  float mean = 0.0f, variance = 0.0f;
  for (IDX_T c = 0; c < group_channels; ++c) {
    float part = 0.0f;
    for (IDX_T i = 0; i < size; ++i) part += LOAD(AT(x), first + c * size + i);
    mean += part;
  }
  mean /= n;
  for (IDX_T c = 0; c < group_channels; ++c) {
    float part = 0.0f;
    for (IDX_T i = 0; i < size; ++i) {
      const float d = LOAD(AT(x), first + c * size + i) - mean;
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
      STORE(at, (LOAD(AT(x), at) - mean) * factor + shift);
    }
  }
}
