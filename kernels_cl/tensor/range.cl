// Range: y[i] = start + i * delta, i < n; start and delta [1], all of DATA_T. Work-item: one
// element.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T int
#endif

__kernel void range(IN(DATA_T, start), IN(DATA_T, delta), OUT(DATA_T, y), const IDX_T n) {
  const IDX_T i = get_global_id(0);
  if (i < n) AT(y)[i] = AT(start)[0] + (DATA_T)i * AT(delta)[0];
}
