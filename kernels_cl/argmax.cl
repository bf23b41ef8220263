// The index of the largest (or smallest: BETTER) element along one axis of [outer, n, step].
// NaN counts as best, as in NumPy.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T float
#define VALUE_T float
#define HALF 0
#define BETTER(a, b) ((a) > (b))
#define IS_FLOAT 1
#endif
#if HALF
#define READ(i) vload_half((i), AT(x))
#else
#define READ(i) (AT(x)[i])
#endif

__kernel void argmax(OUT(long, y), IN(DATA_T, x), const IDX_T outer, const IDX_T n,
                     const IDX_T step) {
  const IDX_T inner = get_global_id(0), block = get_global_id(1);
  if (inner >= step || block >= outer) return;
  const IDX_T at = block * n * step + inner;
  VALUE_T best = READ(at);
  IDX_T found = 0;
  for (IDX_T i = 1; i < n; ++i) {
    const VALUE_T v = READ(at + i * step);
#if IS_FLOAT
    const int better = BETTER(v, best) || (v != v && best == best);
#else
    const int better = BETTER(v, best);
#endif
    if (better) {
      best = v;
      found = i;
    }
  }
  AT(y)[block * step + inner] = found;
}
