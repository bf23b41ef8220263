// Trilu: y = x on one side of the k-th diagonal, 0 on the other.
//   x  read, y  written: DATA_T [matrices, rows, columns]. DATA_T is an unsigned integer type of
//      the elements' size.
//   UPPER       1: keeps elements with column - row >= k; 0: with column - row <= k
//   trilu       (GPUs) one work-item per (column, row, matrix)
//   trilu_rows  (CPUs) a work-group of one work-item writes `height` of the `all` rows of all
//               matrices
#include "common/base.clh"
#include "common/axes.clh"
#ifndef DATA_T
#define DATA_T uint
#define UPPER 1
#endif

#if !CPU
__kernel void trilu(IN(DATA_T, x), OUT(DATA_T, y), const IDX_T rows, const IDX_T columns,
                    const IDX_T matrices, const IDX_T k) {
  GLOBAL_XYZ(column, row, matrix, columns, rows)
  if (column >= columns || row >= rows || (uint)matrix >= (uint)matrices) return;
  const IDX_T at = (matrix * rows + row) * columns + column;
  const int keep = UPPER ? column - row >= k : column - row <= k;
  AT(y)[at] = keep ? AT(x)[at] : (DATA_T)0;
}

#else
__kernel SINGLE_ITEM
void trilu_rows(IN(DATA_T, x), OUT(DATA_T, y), const IDX_T rows, const IDX_T columns, const IDX_T k,
                const IDX_T all, const IDX_T height) {
  const IDX_T begin = get_group_id(0) * height, end = min(begin + height, all);
  IDX_T row = begin - begin / rows * rows;
  for (IDX_T r = begin; r < end; ++r, row = row + 1 < rows ? row + 1 : 0) {
    // First kept column (UPPER), or one past the last.
    const IDX_T edge = clamp(row + k + (UPPER ? 0 : 1), 0, columns);
    __global const DATA_T *const from = AT(x) + r * columns;
    __global DATA_T *const to = AT(y) + r * columns;
    for (IDX_T i = UPPER ? 0 : edge; i < (UPPER ? edge : columns); ++i) to[i] = 0;
    for (IDX_T i = UPPER ? edge : 0; i < (UPPER ? columns : edge); ++i) to[i] = from[i];
  }
}
#endif
