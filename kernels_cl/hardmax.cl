// Hardmax: one work-item reads one line of n elements, `inner` apart, then writes it.
// Work-item (inner, outer).
#include "common/base.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define VALUE_T float
#endif

__kernel void hardmax(IN(DATA_T, x), OUT(DATA_T, y), const IDX_T n, const IDX_T inner) {
  const IDX_T r = get_global_id(0);
  if (r >= inner) return;
  const IDX_T base = (IDX_T)get_global_id(1) * n * inner + r;
  VALUE_T best = LOAD(AT(x), base);
  IDX_T found = 0;
  for (IDX_T k = 1; k < n; ++k) {
    const VALUE_T v = LOAD(AT(x), base + k * inner);
    if (v > best || (v != v && best == best)) {
      best = v;
      found = k;
    }
  }
  for (IDX_T k = 0; k < n; ++k) STORE(AT(y), base + k * inner, (VALUE_T)(k == found));
}
