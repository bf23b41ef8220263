// Writes one element everywhere: ConstantOfShape, the border of Pad, the mask of Dropout.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T uint
#endif

__kernel void fill_bits(OUT(DATA_T, dst), const IDX_T n, const IDX_T items, const long bits) {
  const IDX_T item = get_global_id(0);
  if (item >= items) return;
  // The last one by itself: n and the items together may be more than IDX_T holds.
  IDX_T i = item;
  for (; i < n - items; i += items) AT(dst)[i] = (DATA_T)bits;
  AT(dst)[i] = (DATA_T)bits;
}

__kernel void fill_from(IN(DATA_T, value), OUT(DATA_T, dst), const IDX_T n) {
  const IDX_T i = get_global_id(0);
  if (i < n) AT(dst)[i] = AT(value)[0];
}
