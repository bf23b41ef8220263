// Hardmax: y = 1 at the largest element of x along the second axis of [outer, n, step] (the first
// of equals; NaN is largest), 0 elsewhere.
//   x  read, y  written: DATA_T [outer, n, step], compared as VALUE_T
// One work-item per line of n elements, `step` elements apart (common/lines.clh).
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
