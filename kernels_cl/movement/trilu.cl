// Trilu: keeps x on one side of the k-th diagonal. Work-item (column, row, matrix).
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T uint
#define UPPER 1
#endif

__kernel void trilu(IN(DATA_T, x), OUT(DATA_T, y), const IDX_T rows, const IDX_T columns,
                    const IDX_T k) {
  const IDX_T column = get_global_id(0);
  const IDX_T row = get_global_id(1);
  if (column >= columns || row >= rows) return;
  const IDX_T at = ((IDX_T)get_global_id(2) * rows + row) * columns + column;
  const int keep = UPPER ? column - row >= k : column - row <= k;
  AT(y)[at] = keep ? AT(x)[at] : (DATA_T)0;
}
