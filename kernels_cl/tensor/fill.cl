// Fills dst with one scalar (ConstantOfShape, Pad border, Dropout mask).
//   dst  written: DATA_T [n]. DATA_T is an unsigned integer type of the elements' size.
//   fill_bits  the scalar is the low bits of argument `bits`;  fill_from  the scalar is value
//              DATA_T [1]
// One work-item per `run` adjacent elements.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T uint
#endif

// A work-item writes `run` elements.
#define FILL(value)                                    \
  const size_t begin = get_global_id(0) * run;         \
  if (begin >= (size_t)n) return;                      \
  const IDX_T from = begin, to = UP_TO(from, run, n);  \
  const DATA_T one = value;                            \
  for (IDX_T i = from; i < to; ++i) AT(dst)[i] = one;

__kernel void fill_bits(OUT(DATA_T, dst), const IDX_T n, const IDX_T run, const long bits) {
  FILL((DATA_T)bits)
}

__kernel void fill_from(IN(DATA_T, value), OUT(DATA_T, dst), const IDX_T n, const IDX_T run) {
  FILL(AT(value)[0])
}
