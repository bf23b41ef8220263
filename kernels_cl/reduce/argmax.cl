// ArgMax and ArgMin: the index of the largest or smallest element of x along the second axis of
// [outer, n, step]. NaN counts as largest and as smallest, as in NumPy.
//   x  read: DATA_T [outer, n, step];  y  written: int64 [outer, step]
//   BETTER(a, b)     a > b for ArgMax, a < b for ArgMin; >= and <= with LAST
//   LAST             1: the last of equal elements; 0: the first
//   VW, T_VW  lanes per vector of the two vector kernels; 1 selects `argmax`;  IS_FLOAT  1: VALUE_T
//             is a float
//   argmax           (VW 1) any DATA_T, compared as VALUE_T; one work-item per line of n elements
//   argmax_rows      (VW > 1) float32, step 1, in vectors; a work-group of one work-item has `rows`
//                    rows
//   argmax_columns   (VW > 1) float32, in vectors of columns; one work-group of one work-item per
//                    (T_NV * VW of the `step` columns, `blocks` outer indices) (common/columns.clh)
#include "common/base.clh"
#ifndef BETTER
#define BETTER(a, b) ((a) > (b))
#define LAST 0
#endif
#ifndef DATA_T
#define DATA_T float
#define VALUE_T float
#define IS_FLOAT 1
#endif
#ifndef T_VW
#define T_VW 8
#endif
#ifndef T_NV
#define T_NV 8
#endif
#ifndef VW
#define VW T_VW
#endif
// For floats: NaN is better than any number; with LAST, a later NaN than an earlier one.
#define BETTER_FLOAT(a, b) (BETTER(a, b) | ((a != a) & (LAST | (b == b))))

#if VW == 1
#include "common/lines.clh"
#include "common/storage.clh"

__kernel void argmax(OUT(long, y), IN(DATA_T, x), LINES) {
  LINE_ITEM
  VALUE_T best = LOAD(AT(x), at);
  IDX_T found = 0;
  for (IDX_T i = 1; i < n; ++i) {
    const VALUE_T v = LOAD(AT(x), at + i * step);
#if IS_FLOAT
    const int better = BETTER_FLOAT(v, best);
#else
    const int better = BETTER(v, best);
#endif
    if (better) {
      best = v;
      found = i;
    }
  }
  AT(y)[line] = found;
}

#else
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/rows.clh"
#include "common/columns.clh"

#undef BETTER_FLOAT
#define BETTER_FLOAT(a, b) (BETTER(a, b) | ((a != a) & ((I)(-LAST) | (b == b))))
#define TAKE(best, found, value, index)                \
  {                                                    \
    const F v = value;                                 \
    const I better = BETTER_FLOAT(v, best);            \
    best = PICK(better, v, best);                      \
    found = PICK(better, index, found);                \
  }

static inline IDX_T best_of_row(__global const float *from, const IDX_T n) {
  const IDX_T whole = n / VW * VW;
  F best = (F)(from[0]);
  I found = (I)(0), index;
  for (int lane = 0; lane < VW; ++lane) ((int *)&index)[lane] = lane;
  for (IDX_T i = 0; i < whole; i += VW) {
    TAKE(best, found, LOAD_F(from + i), index)
    index = index + (I)(VW);
  }
  // Each lane keeps its best element, the first (or last) of equals.
  float top = from[0];
  IDX_T at = 0;
  for (int lane = 0; lane < VW; ++lane) {
    const float v = ((const float *)&best)[lane];
    const IDX_T i = ((const int *)&found)[lane];
    const int same = v == top || (v != v && top != top);
    if (same ? (LAST ? i > at : i < at) : BETTER(v, top) || v != v) {
      top = v;
      at = i;
    }
  }
  for (IDX_T i = whole; i < n; ++i) {
    const float v = from[i];
    if (BETTER(v, top) || (v != v && (LAST || top == top))) {
      top = v;
      at = i;
    }
  }
  return at;
}

__kernel SINGLE_ITEM
void argmax_rows(OUT(long, y), IN(float, x), const IDX_T outer, const IDX_T n, const IDX_T rows) {
  const IDX_T first = get_group_id(0) * rows;
  const IDX_T end = i_min(first + rows, outer);
  for (IDX_T row = first; row < end; ++row) AT(y)[row] = best_of_row(AT(x) + row * n, n);
}

__kernel SINGLE_ITEM
void argmax_columns(OUT(long, y), IN(float, x), const IDX_T outer, const IDX_T n,
                    const IDX_T step, const IDX_T blocks) {
  COLUMN_ITEM(outer, step, blocks)
  F best[T_NV];
  I found[T_NV];
  for (IDX_T block = begin; block < end; ++block) {
    __global const float *const from = AT(x) + block * n * step + first;
    EACH best[k] = COLUMNS(from);
    EACH found[k] = (I)(0);
    for (IDX_T i = 1; i < n; ++i) {
      __global const float *const row = from + i * step;
      EACH {
        PREFETCH(row + ROWS_AHEAD * step + c);
        TAKE(best[k], found[k], COLUMNS(row), (I)(i))
      }
    }
    __global long *const to = AT(y) + block * step + first;
    for (IDX_T c = 0; c < i_min(left, T_NV * VW); ++c) to[c] = ((const int *)found)[c];
  }
}
#endif
