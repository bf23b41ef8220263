// y = 1 at the largest element of x along axis n of [outer, n, step], NaN counting as largest, the
// first of equals; 0 elsewhere. x and y have storage DATA_T, and are computed in VALUE_T.
// Work-item: one line of n elements (common/lines.clh).
#include "common/base.clh"
#include "common/lines.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define VALUE_T float
#endif

__kernel void hardmax(IN(DATA_T, x), OUT(DATA_T, y), LINES) {
  LINE_ITEM
  VALUE_T best = LOAD(AT(x), at);
  IDX_T found = 0;
  for (IDX_T k = 1; k < n; ++k) {
    const VALUE_T v = LOAD(AT(x), at + k * step);
    if (v > best || (v != v && best == best)) {
      best = v;
      found = k;
    }
  }
  for (IDX_T k = 0; k < n; ++k) STORE(AT(y), at + k * step, (VALUE_T)(k == found));
}
