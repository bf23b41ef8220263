// Writes one element everywhere: ConstantOfShape, the border of Pad, the mask of Dropout.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T uint
#endif

// A work-item writes `run` elements.
#define FILL(value)                                    \
  const IDX_T from = get_global_id(0) * run;           \
  const IDX_T to = n - from < run ? n : from + run;    \
  const DATA_T one = value;                            \
  for (IDX_T i = from; i < to; ++i) AT(dst)[i] = one;

__kernel void fill_bits(OUT(DATA_T, dst), const IDX_T n, const IDX_T run, const long bits) {
  FILL((DATA_T)bits)
}

__kernel void fill_from(IN(DATA_T, value), OUT(DATA_T, dst), const IDX_T n, const IDX_T run) {
  FILL(AT(value)[0])
}
