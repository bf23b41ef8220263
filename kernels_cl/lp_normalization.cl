// x / (sum |x|^p)^(1/p) along one axis of [outer, n, step], P = 1 or 2; 0 where the norm is 0.
// The norm is taken before anything is written, so y may be x.
#include "common/base.clh"
#ifndef P
#define P 2
#define HALF 0
#endif
#if HALF
#define DATA_T half
#define LOAD(i) vload_half((i), AT(x))
#define STORE(i, v) vstore_half((v), (i), AT(y))
#else
#define DATA_T float
#define LOAD(i) (AT(x)[i])
#define STORE(i, v) AT(y)[i] = (v)
#endif

__kernel void lp_normalization(OUT(DATA_T, y), IN(DATA_T, x), const IDX_T outer, const IDX_T n,
                               const IDX_T step) {
  const IDX_T inner = get_global_id(0), block = get_global_id(1);
  if (inner >= step || block >= outer) return;
  const IDX_T at = block * n * step + inner;
  float sum = 0.0f;
  for (IDX_T i = 0; i < n; ++i) {
    const float v = LOAD(at + i * step);
    sum += P == 1 ? fabs(v) : v * v;
  }
  const float norm = P == 1 ? sum : sqrt(sum);
  for (IDX_T i = 0; i < n; ++i) {
    const float v = LOAD(at + i * step);
    STORE(at + i * step, norm == 0.0f ? 0.0f : v / norm);
  }
}
