// Gather: y[o, i, :] = x[o, indices[i], :] for rows of `units` pieces of COPY_T.
// Work-item (chunk of T_PER_ITEM pieces, i, o); with ROWS_FIRST, where a row is one piece, (i, 0, o).
#include "common/base.clh"
#include "common/index.clh"
#ifndef DATA_T
#define DATA_T uint
#define COPY_T uint4
#define INDEX_T long
#define T_PER_ITEM 8
#define ROWS_FIRST 0
#endif

__kernel void gather(IN(DATA_T, x), IN(INDEX_T, indices), OUT(DATA_T, y), OUT(int, status),
                     const IDX_T n, const IDX_T rows, const IDX_T units) {
  const IDX_T i = get_global_id(ROWS_FIRST ? 0 : 1);
  const IDX_T first = (IDX_T)get_global_id(ROWS_FIRST ? 1 : 0) * T_PER_ITEM;
  const IDX_T o = get_global_id(2);
  if (i >= rows || first >= units) return;
  const IDX_T row = clrt_index((long)AT(indices)[i], n, AT(status));
  __global const COPY_T *from = (__global const COPY_T *)AT(x) + (o * n + row) * units;
  __global COPY_T *to = (__global COPY_T *)AT(y) + (o * rows + i) * units;
  const IDX_T last = first + T_PER_ITEM < units ? first + T_PER_ITEM : units;
  for (IDX_T k = first; k < last; ++k) to[k] = from[k];
}
