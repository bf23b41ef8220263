// Support vector machines. squared_distance: squared distances of rows to support vectors.
// couple_pairs: class probabilities from the probabilities of pairs of classes. Operands and
// work-items are described at each kernel.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T float
#endif

// Squared distances of rows of x to support vectors: y[row, vector] =
// |x[row] - vectors[vector]|^2. All of DATA_T: x [rows, features], vectors [count, features],
// y [rows, count]. One work-item per (vector, row).
__kernel void squared_distance(IN(DATA_T, x), IN(DATA_T, vectors), OUT(DATA_T, y),
                               const IDX_T count, const IDX_T features) {
  const IDX_T vector = get_global_id(0), row = get_global_id(1);
  if (vector >= count) return;
  __global const DATA_T *a = AT(x) + row * features, *b = AT(vectors) + vector * features;
  DATA_T sum = 0;
  for (IDX_T i = 0; i < features; ++i) {
    const DATA_T d = a[i] - b[i];
    sum += d * d;
  }
  AT(y)[row * count + vector] = sum;
}

// Index in a row of x of the probability that class i wins over class j > i.
#define PAIR(i, j) ((i) * (2 * k - (i) - 1) / 2 + (j) - (i) - 1)
#define LIMIT(p) ((p) < 1e-7f ? 1e-7f : (p) > 1.0f - 1e-7f ? 1.0f - 1e-7f : (p))

static inline float wins(__global const float *pairs, const IDX_T k, const IDX_T i, const IDX_T j) {
  return i < j ? LIMIT(pairs[PAIR(i, j)]) : 1.0f - LIMIT(pairs[PAIR(j, i)]);
}

// Class probabilities from probabilities of pairs of classes, by iteration (see
// clrt/ops/ml/svm.py). x, read: float32 [rows, k (k - 1) / 2], one per pair. y, written: float32
// [rows, k]. scratch: float32 [rows, k * k + k], a row's matrix Q and vector Q p. One work-item
// per row.
__kernel void couple_pairs(IN(float, x), OUT(float, y), OUT(float, scratch), const IDX_T rows,
                           const IDX_T k) {
  const IDX_T row = get_global_id(0);
  if (row >= rows) return;
  __global const float *pairs = AT(x) + row * (k * (k - 1) / 2);
  __global float *p = AT(y) + row * k;
  __global float *q = AT(scratch) + row * (k * k + k), *qp = q + k * k;
  for (IDX_T i = 0; i < k; ++i) {
    p[i] = 1.0f / k;
    float sum = 0;
    for (IDX_T j = 0; j < k; ++j) {
      if (i == j) continue;
      const float other = wins(pairs, k, j, i);
      sum += other * other;
      q[i * k + j] = -other * wins(pairs, k, i, j);
    }
    q[i * k + i] = sum;
  }
  for (IDX_T turn = 0; turn < max((IDX_T)100, k); ++turn) {
    float total = 0, worst = 0;
    for (IDX_T i = 0; i < k; ++i) {
      float sum = 0;
      for (IDX_T j = 0; j < k; ++j) sum += q[i * k + j] * p[j];
      qp[i] = sum;
      total += p[i] * sum;
    }
    for (IDX_T i = 0; i < k; ++i) worst = fmax(worst, fabs(qp[i] - total));
    if (worst < 0.005f / k) break;
    for (IDX_T t = 0; t < k; ++t) {
      const float d = q[t * k + t];
      const float step = (total - qp[t]) / d;
      const float scale = 1.0f / (1.0f + step);
      total = (total + step * (step * d + 2.0f * qp[t])) * scale * scale;
      p[t] += step;
      for (IDX_T j = 0; j < k; ++j) {
        qp[j] = (qp[j] + step * q[t * k + j]) * scale;
        p[j] *= scale;
      }
    }
  }
}
