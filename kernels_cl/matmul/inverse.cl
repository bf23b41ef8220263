// Inverses of square matrices, by Gauss-Jordan elimination with partial pivoting: the row
// operations that reduce a copy of x to the identity turn the identity, in y, into the inverse.
//   x     read: float32 [count, n, n];  y  written: float32 [count, n, n]
//   copy  scratch float32 [count, n, n]
// One work-item per matrix.
#include "common/base.clh"

__kernel void inverse(OUT(float, y), IN(float, x), OUT(float, copy), const IDX_T count,
                      const IDX_T n) {
  const IDX_T matrix = get_global_id(0);
  if (matrix >= count) return;
  __global const float *const from = AT(x) + matrix * n * n;
  __global float *const a = AT(copy) + matrix * n * n;
  __global float *const b = AT(y) + matrix * n * n;
  for (IDX_T i = 0; i < n * n; ++i) {
    a[i] = from[i];
    b[i] = i % (n + 1) == 0 ? 1.0f : 0.0f;
  }
  for (IDX_T k = 0; k < n; ++k) {
    IDX_T pivot = k;
    for (IDX_T i = k + 1; i < n; ++i)
      if (fabs(a[i * n + k]) > fabs(a[pivot * n + k])) pivot = i;
    const float head = a[pivot * n + k];
    for (IDX_T j = 0; j < n; ++j) {
      const float left = a[pivot * n + j], right = b[pivot * n + j];
      a[pivot * n + j] = a[k * n + j];
      b[pivot * n + j] = b[k * n + j];
      a[k * n + j] = left / head;
      b[k * n + j] = right / head;
    }
    for (IDX_T i = 0; i < n; ++i) {
      const float factor = a[i * n + k];
      if (i == k || factor == 0.0f) continue;
      for (IDX_T j = 0; j < n; ++j) {
        a[i * n + j] -= factor * a[k * n + j];
        b[i * n + j] -= factor * b[k * n + j];
      }
    }
  }
}
