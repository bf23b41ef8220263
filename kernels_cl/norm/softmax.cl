// Softmax, y = exp(x - max) / sum(exp(x - max)) along one axis, or LogSoftmax, its natural
// logarithm. y may alias x: every element is read before it is written. Four kernels, selected by
// macros: VW > 1 the first two, VW 1 with T_ITEMS softmax_group, else softmax_any.
//   softmax_cpu      x and y float32 [rows, n]; a work-group of one work-item has T_ROWS rows
//   softmax_columns  x and y float32 [outer, n, step], along n, in vectors of VW columns; one
//                    work-group of one work-item per (T_NV * VW of the `step` columns, `blocks`
//                    outer indices)
//   softmax_group    x and y DATA_T [rows, n]; `lanes` work-items of a work-group share a row
//                    (common/group.clh)
//   softmax_any      x and y DATA_T [outer, n, step], along n; one work-item per line of n elements
// Macros:
//   DATA_T   storage type of x and y;  ACC_T  type computed in;  MATH(name)  function `name` for
//            ACC_T
//   LOG      1: LogSoftmax;  T_VW  lanes per vector: VW, unless VW is defined
//   T_ROWS   rows per work-group;  T_NV  vectors of columns per work-group
//   T_ITEMS  work-items per work-group, of which `lanes` (a power of two) share a row
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T float
#define ACC_T float
#define MATH(name) c_##name
#endif
#ifndef LOG
#define LOG 0
#endif
#ifndef T_VW
#define T_VW 8
#endif
#ifndef VW
#define VW T_VW
#endif
#ifndef T_ROWS
#define T_ROWS 4
#endif
#ifndef T_NV
#define T_NV 8
#endif
#include "common/math.clh"
#include "common/scalar.clh"

#if VW == 1
#include "common/lines.clh"
#include "common/storage.clh"

#ifdef T_ITEMS
#include "common/group.clh"
#define AT_ELEMENT(i) LOAD(AT(x), row * n + (i))

__kernel GROUP
void softmax_group(OUT(DATA_T, y), IN(DATA_T, x), const IDX_T rows, const IDX_T n,
                   const IDX_T lanes) {
  __local ACC_T parts[T_ITEMS];
  GROUP_ROW(rows, n, lanes)
  ACC_T top = -INFINITY, sum = 0;
  EACH_OF_LANE(i) top = MATH(max)(top, AT_ELEMENT(i));
  GROUP_FOLD(top, MATH(max), parts, lanes)
  EACH_OF_LANE(i) sum += MATH(exp)(AT_ELEMENT(i) - top);
  GROUP_FOLD(sum, SUM_OF, parts, lanes)
#if LOG
  const ACC_T shift = MATH(log)(sum);
  EACH_OF_LANE(i) STORE(AT(y), row * n + i, AT_ELEMENT(i) - top - shift);
#else
  const ACC_T inverse = 1 / sum;
  EACH_OF_LANE(i) STORE(AT(y), row * n + i, MATH(exp)(AT_ELEMENT(i) - top) * inverse);
#endif
}

#else
__kernel void softmax_any(OUT(DATA_T, y), IN(DATA_T, x), LINES) {
  LINE_ITEM
  ACC_T top = -INFINITY, sum = 0;
  for (IDX_T i = 0; i < n; ++i) top = MATH(max)(top, LOAD(AT(x), at + i * step));
  for (IDX_T i = 0; i < n; ++i) sum += MATH(exp)(LOAD(AT(x), at + i * step) - top);
#if LOG
  const ACC_T shift = MATH(log)(sum);
  for (IDX_T i = 0; i < n; ++i)
    STORE(AT(y), at + i * step, LOAD(AT(x), at + i * step) - top - shift);
#else
  const ACC_T inverse = 1 / sum;
  for (IDX_T i = 0; i < n; ++i)
    STORE(AT(y), at + i * step, MATH(exp)(LOAD(AT(x), at + i * step) - top) * inverse);
#endif
}
#endif

#else
#include "common/rows.clh"

#define JOIN_TOP(a, b) PICK((a) > (b), a, b)

static inline void softmax_row(__global float *to, __global const float *from, IDX_T n) {
  const IDX_T whole = n / VW * VW;
  F rest = load_lanes(from + whole, n - whole, -INFINITY);
  // This maximum may drop a NaN; the sum keeps it.
  F top = rest;
  for (IDX_T i = 0; i < whole; i += VW) top = JOIN_TOP(top, LOAD_F(from + i));
  FOLD(top, JOIN_TOP)
  F sum = (F)(0.0f);
#if LOG
  for (IDX_T i = 0; i < whole; i += VW) sum = sum + c_exp(LOAD_F(from + i) - top);
  if (whole < n) sum = sum + c_exp(rest - top);
  FOLD(sum, JOIN_SUM)
  const F shift = c_log(sum);
  for (IDX_T i = 0; i < whole; i += VW) STORE_F(to + i, LOAD_F(from + i) - top - shift);
  rest = rest - top - shift;
#else
  for (IDX_T i = 0; i < whole; i += VW) {
    PREFETCH(from + n + i);
    PREFETCH(to + n + i);
    const F e = c_exp(LOAD_F(from + i) - top);
    STORE_F(to + i, e);
    sum = sum + e;
  }
  if (whole < n) {
    rest = c_exp(rest - top);
    sum = sum + rest;
  }
  FOLD(sum, JOIN_SUM)
  const F inverse = (F)(1.0f) / sum;
  for (IDX_T i = 0; i < whole; i += VW) STORE_F(to + i, LOAD_F(to + i) * inverse);
  rest = rest * inverse;
#endif
  store_lanes(to + whole, rest, n - whole);
}

__kernel SINGLE_ITEM
void softmax_cpu(OUT(float, y), IN(float, x), const IDX_T rows, const IDX_T n) {
  const IDX_T first = get_group_id(0) * T_ROWS;
  const IDX_T end = i_min(first + T_ROWS, rows);
  for (IDX_T row = first; row < end; ++row) softmax_row(AT(y) + row * n, AT(x) + row * n, n);
}

#include "common/columns.clh"

// Softmax along an axis of n elements for adjacent columns, in `vectors` vectors of VW columns.
// Element (i, c) is at i * step + c of `from` and `to`. `left` is the number of columns before the
// end of a row; the last vector may have fewer than VW of them.
static inline void softmax_block(__global float *to, __global const float *from, const IDX_T n,
                                 const IDX_T step, const IDX_T left, const IDX_T vectors) {
  F top[T_NV], sum[T_NV];
  EACH top[k] = (F)(-INFINITY);
  EACH sum[k] = (F)(0.0f);
  for (IDX_T i = 0; i < n; ++i) {
    __global const float *const row = from + i * step;
    EACH {
      PREFETCH(row + ROWS_AHEAD * step + c);
      // This maximum may drop a NaN; the sum keeps it.
      top[k] = JOIN_TOP(top[k], COLUMNS(row));
    }
  }
  for (IDX_T i = 0; i < n; ++i) {
    EACH {
      const F e = c_exp(COLUMNS(from + i * step) - top[k]);
      sum[k] = sum[k] + e;
#if !LOG
      STORE_COLUMNS(to + i * step, e)
#endif
    }
  }
  EACH sum[k] = LOG ? c_log(sum[k]) : (F)(1.0f) / sum[k];
  for (IDX_T i = 0; i < n; ++i) {
#if LOG
    EACH STORE_COLUMNS(to + i * step, COLUMNS(from + i * step) - top[k] - sum[k])
#else
    EACH STORE_COLUMNS(to + i * step, COLUMNS(to + i * step) * sum[k])
#endif
  }
}

__kernel SINGLE_ITEM
void softmax_columns(OUT(float, y), IN(float, x), const IDX_T outer, const IDX_T n,
                     const IDX_T step, const IDX_T blocks) {
  COLUMN_ITEM(outer, step, blocks)
  for (IDX_T block = begin; block < end; ++block) {
    const IDX_T at = block * n * step + first;
    softmax_block(AT(y) + at, AT(x) + at, n, step, left, vectors);
  }
}
#endif
