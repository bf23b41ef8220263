// LpNormalization: y = x / (sum |x|^P)^(1 / P) along the second axis of [outer, n, step]; 0 if the
// norm is 0.
//   x  read, y  written: storage DATA_T [outer, n, step]; y may alias x, since the norm is computed
//      before anything is written
//   P  1 or 2
// One work-item per line of n elements, `step` elements apart (common/lines.clh).
#include "common/base.clh"
#include "common/lines.clh"
#include "common/storage.clh"
#ifndef P
#define P 2
#endif
#ifndef DATA_T
#define DATA_T float
#endif

__kernel void lp_normalization(OUT(DATA_T, y), IN(DATA_T, x), LINES) {
  LINE_ITEM
  float sum = 0.0f;
  for (IDX_T i = 0; i < n; ++i) {
    const float v = LOAD(AT(x), at + i * step);
    sum += P == 1 ? fabs(v) : v * v;
  }
  const float norm = P == 1 ? sum : sqrt(sum);
  for (IDX_T i = 0; i < n; ++i) {
    const float v = LOAD(AT(x), at + i * step);
    STORE(AT(y), at + i * step, norm == 0.0f ? 0.0f : v / norm);
  }
}
