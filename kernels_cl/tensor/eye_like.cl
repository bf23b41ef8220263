// EyeLike: y is ONE, the bits of 1, on the k-th diagonal (column - row == k), else 0.
//   y  written: DATA_T [rows, columns]. DATA_T is an unsigned integer type of the elements' size.
// One work-item per (column, row).
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T uint
#define ONE 0x3f800000
#endif

__kernel void eye_like(OUT(DATA_T, y), const IDX_T rows, const IDX_T columns, const IDX_T k) {
  const IDX_T column = get_global_id(0);
  const IDX_T row = get_global_id(1);
  if (column >= columns || row >= rows) return;
  AT(y)[row * columns + column] = column - row == k ? (DATA_T)ONE : (DATA_T)0;
}
