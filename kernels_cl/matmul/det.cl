// Determinants of square matrices, by elimination with partial pivoting.
//   x     read: float32 [count, n, n];  y  written: float32 [count]
//   copy  scratch float32 [count, n, n]
// One work-item per matrix.
#include "common/base.clh"

__kernel void det(OUT(float, y), IN(float, x), OUT(float, copy), const IDX_T count,
                  const IDX_T n) {
  const IDX_T matrix = get_global_id(0);
  if (matrix >= count) return;
  __global const float *const from = AT(x) + matrix * n * n;
  __global float *const a = AT(copy) + matrix * n * n;
  for (IDX_T i = 0; i < n * n; ++i) a[i] = from[i];
  float result = 1.0f;
  for (IDX_T k = 0; k < n; ++k) {
    IDX_T pivot = k;
    for (IDX_T i = k + 1; i < n; ++i)
      if (fabs(a[i * n + k]) > fabs(a[pivot * n + k])) pivot = i;
    const float head = a[pivot * n + k];
    result *= pivot == k ? head : -head;
    if (head == 0.0f) break;
    for (IDX_T j = k; j < n; ++j) {
      const float moved = a[pivot * n + j];
      a[pivot * n + j] = a[k * n + j];
      a[k * n + j] = moved;
    }
    for (IDX_T i = k + 1; i < n; ++i) {
      const float factor = a[i * n + k] / head;
      for (IDX_T j = k + 1; j < n; ++j) a[i * n + j] -= factor * a[k * n + j];
    }
  }
  AT(y)[matrix] = result;
}
