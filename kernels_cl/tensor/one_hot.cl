// OneHot: y[o, d, r] = values[1] (on) if indices[o, r] is d or d - depth, else values[0] (off).
//   indices  read: INDEX_T [outer, inner];  values  read: DATA_T [2];  y  written: DATA_T [outer,
//            depth, inner]. DATA_T is an unsigned integer type of the elements' size.
//   VALUE_T  type of an index after loading;  IS_FLOAT  1: VALUE_T is a float
// One work-item per (d * inner + r, o).
#include "common/base.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#define VALUE_T long
#define IS_FLOAT 0
#endif

__kernel void one_hot(IN(INDEX_T, indices), IN(DATA_T, values), OUT(DATA_T, y), const IDX_T depth,
                      const IDX_T inner) {
  const IDX_T at = get_global_id(0);
  const IDX_T o = get_global_id(1);
  if (at >= depth * inner) return;
  const IDX_T d = at / inner, r = at % inner;
#if IS_FLOAT
  // NaN and very large indices match no position.
  const VALUE_T v = LOAD(AT(indices), o * inner + r);
  const long index = fabs(v) < 1e9f ? (long)v : LONG_MIN;
#else
  const long index = (long)LOAD(AT(indices), o * inner + r);
#endif
  const int on = index == d || index + depth == d;
  AT(y)[o * depth * inner + at] = on ? AT(values)[1] : AT(values)[0];
}
