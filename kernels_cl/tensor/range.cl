// Range: y[i] = start + i * delta for i < n.
//   start, delta  read: DATA_T [1];  y  written: DATA_T [n]
// One work-item per element.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T int
#endif

__kernel void range(IN(DATA_T, start), IN(DATA_T, delta), OUT(DATA_T, y), const IDX_T n) {
  const IDX_T i = get_global_id(0);
  if (i < n) AT(y)[i] = AT(start)[0] + (DATA_T)i * AT(delta)[0];
}
