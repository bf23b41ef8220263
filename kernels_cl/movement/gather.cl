// Gather along one axis: y[o, i, :] = x[o, indices[i], :].
//   x  read: DATA_T [outer, n, row];  y  written: DATA_T [outer, rows, row]. DATA_T is an unsigned
//      integer type of the elements' size.
//   indices  read: INDEX_T [rows]; one out of range is clamped and reported in `status`
//   gather      (GPUs) copies units of type COPY_T, `units` of them per row; one work-item per
//               (unit, i, o); with ROWS_FIRST, for rows of one unit, per (i, 0, o)
//   gather_cpu  (T_BYTES) `units` is the number of elements of a row; a work-group of one work-item
//               copies T_BYTES bytes of the `total` elements of y, a part of a row or several rows
#include "common/base.clh"
#include "common/index.clh"
#ifndef DATA_T
#define DATA_T uint
#define COPY_T uint4
#define INDEX_T long
#define ROWS_FIRST 0
#endif

#ifndef T_BYTES
__kernel void gather(IN(DATA_T, x), IN(INDEX_T, indices), OUT(DATA_T, y), OUT(long, status),
                     const IDX_T n, const IDX_T rows, const IDX_T units) {
  if (get_global_id(0) >= (size_t)(ROWS_FIRST ? rows : units)) return;
  const IDX_T i = get_global_id(ROWS_FIRST ? 0 : 1);
  const IDX_T k = get_global_id(ROWS_FIRST ? 1 : 0);
  const IDX_T o = get_global_id(2);
  const IDX_T row = clrt_index((long)AT(indices)[i], n, AT(status));
  ((__global COPY_T *)AT(y))[(o * rows + i) * units + k] =
      ((__global const COPY_T *)AT(x))[(o * n + row) * units + k];
}

#else
typedef uint16 __attribute__((aligned(sizeof(DATA_T)))) VECTOR;

static inline __global const DATA_T *picked(__global const DATA_T *x,
                                            __global const INDEX_T *indices, __global long *status,
                                            const IDX_T row, const IDX_T n, const IDX_T rows,
                                            const IDX_T units) {
  const IDX_T o = row / rows;
  return x + (o * n + clrt_index((long)indices[row - o * rows], n, status)) * units;
}

__kernel SINGLE_ITEM
void gather_cpu(IN(DATA_T, x), IN(INDEX_T, indices), OUT(DATA_T, y), OUT(long, status),
                const IDX_T n, const IDX_T rows, const IDX_T units, const IDX_T total) {
#define PICKED(row) picked(AT(x), AT(indices), AT(status), row, n, rows, units)
  const IDX_T lanes = sizeof(VECTOR) / sizeof(DATA_T);
  const IDX_T elems = T_BYTES / sizeof(DATA_T);
  IDX_T at = get_group_id(0) * elems;
  const IDX_T end = total - at < elems ? total : at + elems;
  IDX_T row = at / units;
  __global const DATA_T *from = PICKED(row);
  for (; at < end; ++row) {
    // Prefetches the next row, which hardware cannot predict.
    __global const DATA_T *const next = (row + 1) * units < end ? PICKED(row + 1) : from;
    __global DATA_T *const to = AT(y) + row * units;
    const IDX_T stop = end - row * units < units ? end - row * units : units;
    IDX_T k = at - row * units;
    at += stop - k;
    for (; k <= stop - lanes; k += lanes) {
      PREFETCH(next + k);
      *(__global VECTOR *)(to + k) = *(__global const VECTOR *)(from + k);
    }
    for (; k < stop; ++k) to[k] = from[k];
    from = next;
  }
}
#endif
