// Reductions (ReduceSum, ReduceMean, ReduceMax, …): y [d0, d1, d2], contiguous, is written; each
// element is reduced from r0 * r1 * r2 elements of x. Element (j0, j1, j2) of output (i0, i1, i2)
// is at i0 * s0 + i1 * s1 + i2 * s2 + j0 * t0 + j1 * t1 + j2 * t2 of x. The operation:
//   INIT, STEP(a, x), JOIN(a, b), FINISH(a, n)  initial value; adds element x; combines two partial
//                      results; result from the partial result a of n elements
//   SHIFT            1: the maximum is subtracted from all elements first, and added to the result
//                    (LogSumExp)
//   DATA_T, ACC_T    storage of x and y; type computed in;  DATA_N  type of n
//   VW, T_VW         lanes per vector; 1 for the kernels of any DATA_T
// Kernels:
//   reduce_strided   (VW 1) any DATA_T; one work-item per (i2, i1, i0): one output
//   reduce_group     (VW 1, T_ITEMS) any DATA_T; `lanes` work-items of a work-group of T_ITEMS
//                    share an output (common/group.clh)
//   reduce_parts     (VW 1, T_ITEMS) writes partial results, sums ACC_T [output, part], each of n
//                    elements
//   reduce_joined    (VW 1, T_ITEMS) combines the n partial results of each output, of `count`
//                    elements
//   reduce_columns   (VW > 1) float32, s2 = 1; one work-group of one work-item per (T_NV vectors of
//                    adjacent outputs, i1, i0)
//   reduce_rows      (VW > 1) float32, t2 = 1, in vectors of reduced elements; a work-group of one
//                    work-item computes T_ROWS outputs
//   reduce_pieces    (VW > 1) float32: y[i] reduces elements i * S_N to i * S_N + S_N - 1 of x, in
//                    vectors of outputs; a work-group of one work-item computes `item` outputs
#include "common/base.clh"
#include "common/axes.clh"
#ifndef INIT
#define INIT 0
#define STEP(a, x) (a + x)
#define JOIN(a, b) (a + b)
#define FINISH(a, n) (a)
#define SHIFT 0
#endif
#ifndef DATA_T
#define DATA_T float
#define ACC_T F
#endif
#ifndef T_NV
#define T_NV 32
#endif
#ifndef T_ROWS
#define T_ROWS 8
#endif
#ifndef S_N
#define S_N 2
#endif
#ifdef T_VW
#define VW T_VW
#endif
#include "common/math.clh"
#include "common/scalar.clh"
#if VW > 1
#include "common/rows.clh"
#else
#include "common/storage.clh"
#endif

#define SIZES PARAMS_3(d), PARAMS_3(r), PARAMS_3(s), PARAMS_3(t)
#define COUNT ((DATA_N)(r0 * r1 * r2))
// The count is in the type of the mean: integers divide as integers.
#ifndef DATA_N
#define DATA_N float
#endif

#define OUTER \
  for (IDX_T j0 = 0; j0 < r0; ++j0) \
    for (IDX_T j1 = 0; j1 < r1; ++j1)
#define LARGER(a, b) PICK((a) > (b) || (a) != (a), a, b)
#define FINITE(v) PICK((v) - (v) == (F)(0.0f), v, (F)(0.0f))
#if SHIFT
#define SHIFTED(v, top) ((v) - (top))
#define UNSHIFT(v, top) ((v) + (top))
#else
#define SHIFTED(v, top) (v)
#define UNSHIFT(v, top) (v)
#endif

#if VW == 1
#ifdef T_ITEMS
#include "common/group.clh"

// Declares the reduced index (j0, j1, j2) of element number `at`; for q: an advance by `lanes`
// elements.
#define REDUCED_PLACE(j, at) \
  IDX_T j##2 = (at) % r2, j##1 = (at) / r2 % r1, j##0 = (at) / r2 / r1;
// Runs `step` for each element v of the lane: elements first + lane, first + lane + lanes, …, of
// `end`.
#define EACH_REDUCED(step)                                             \
  if (lane < end) {                                                    \
    REDUCED_PLACE(j, first + lane)                                     \
    REDUCED_PLACE(q, lanes)                                            \
    for (IDX_T i = lane; i < end; i += lanes) {                        \
      const ACC_T v = LOAD(AT(x), base + j0 * t0 + j1 * t1 + j2 * t2); \
      step;                                                            \
      j2 += q2, j1 += q1, j0 += q0;                                    \
      if (j2 >= r2) j2 -= r2, ++j1;                                    \
      if (j1 >= r1) j1 -= r1, ++j0;                                    \
    }                                                                  \
  }
#define OUTPUT_BASE(output) ((output) / d2 / d1 * s0 + (output) / d2 % d1 * s1 + (output) % d2 * s2)

__kernel GROUP
void reduce_group(OUT(DATA_T, y), IN(DATA_T, x), SIZES, const IDX_T rows, const IDX_T n,
                  const IDX_T lanes) {
  __local ACC_T folded[T_ITEMS];
  GROUP_ROW(rows, n, lanes)
  const IDX_T first = 0, base = OUTPUT_BASE(row);
#if SHIFT
  ACC_T top = -INFINITY;
  EACH_REDUCED(top = LARGER(top, v))
  GROUP_FOLD(top, LARGER, folded, lanes)
  top = FINITE(top);
#endif
  ACC_T total = INIT;
  EACH_REDUCED(total = STEP(total, SHIFTED(v, top)))
  GROUP_FOLD(total, JOIN, folded, lanes)
  if (has_row && lane == 0) STORE(AT(y), row, UNSHIFT(FINISH(total, COUNT), top));
}

#if !SHIFT
__kernel GROUP
void reduce_parts(OUT(ACC_T, sums), IN(DATA_T, x), SIZES, const IDX_T parts, const IDX_T rows,
                  const IDX_T n, const IDX_T lanes) {
  __local ACC_T folded[T_ITEMS];
  GROUP_ROW(rows, n, lanes)
  const IDX_T base = OUTPUT_BASE(row / parts), first = row % parts * n;
  end = i_min(end, r0 * r1 * r2 - first);
  ACC_T total = INIT;
  EACH_REDUCED(total = STEP(total, v))
  GROUP_FOLD(total, JOIN, folded, lanes)
  if (has_row && lane == 0) AT(sums)[row] = total;
}

__kernel GROUP
void reduce_joined(OUT(DATA_T, y), IN(ACC_T, sums), const IDX_T count, const IDX_T rows,
                   const IDX_T n, const IDX_T lanes) {
  __local ACC_T folded[T_ITEMS];
  GROUP_ROW(rows, n, lanes)
  ACC_T total = INIT;
  EACH_OF_LANE(i) total = JOIN(total, AT(sums)[row * n + i]);
  GROUP_FOLD(total, JOIN, folded, lanes)
  if (has_row && lane == 0) STORE(AT(y), row, FINISH(total, ((DATA_N)count)));
}
#endif

#else
__kernel void reduce_strided(OUT(DATA_T, y), IN(DATA_T, x), SIZES) {
  const IDX_T i2 = get_global_id(0), i1 = get_global_id(1), i0 = get_global_id(2);
  if (i2 >= d2 || i1 >= d1 || i0 >= d0) return;
  const IDX_T base = i0 * s0 + i1 * s1 + i2 * s2;
#if SHIFT
  ACC_T top = -INFINITY;
  OUTER for (IDX_T j2 = 0; j2 < r2; ++j2) {
    const ACC_T v = LOAD(AT(x), base + j0 * t0 + j1 * t1 + j2 * t2);
    top = LARGER(top, v);
  }
  top = FINITE(top);
#endif
  // One partial result per run: the rounding error grows with a run's length, not with their
  // number.
  ACC_T total = INIT;
  OUTER {
    const IDX_T run = base + j0 * t0 + j1 * t1;
    ACC_T part = INIT;
    for (IDX_T j2 = 0; j2 < r2; ++j2) {
      const ACC_T v = SHIFTED(LOAD(AT(x), run + j2 * t2), top);
      part = STEP(part, v);
    }
    total = JOIN(total, part);
  }
  STORE(AT(y), (i0 * d1 + i1) * d2 + i2, UNSHIFT(FINISH(total, COUNT), top));
}
#endif

#else
// Vectors of adjacent outputs. The partial results fit in the L1 cache.
#include "common/columns.clh"

__kernel SINGLE_ITEM
void reduce_columns(OUT(float, y), IN(float, x), SIZES) {
  const IDX_T i2 = get_group_id(0) * (T_NV * VW), i1 = get_group_id(1), i0 = get_group_id(2);
  const IDX_T left = d2 - i2;
  const IDX_T vectors = COLUMN_VECTORS(left);
  __global const float *const base = AT(x) + i0 * s0 + i1 * s1 + i2;
  __global float *const to = AT(y) + (i0 * d1 + i1) * d2 + i2;
  F total[T_NV], part[T_NV];
#if SHIFT
  F top[T_NV];
  EACH top[k] = (F)(-INFINITY);
  OUTER for (IDX_T j2 = 0; j2 < r2; ++j2) {
    __global const float *const row = base + j0 * t0 + j1 * t1 + j2 * t2;
    EACH top[k] = c_max(top[k], COLUMNS(row));
  }
  EACH top[k] = FINITE(top[k]);
#endif
  EACH total[k] = (F)(INIT);
  OUTER {
    EACH part[k] = (F)(INIT);
    for (IDX_T j2 = 0; j2 < r2; ++j2) {
      __global const float *const row = base + j0 * t0 + j1 * t1 + j2 * t2;
      EACH {
        PREFETCH(row + ROWS_AHEAD * t2 + c);
        const F v = SHIFTED(COLUMNS(row), top[k]);
        part[k] = STEP(part[k], v);
      }
    }
    EACH total[k] = JOIN(total[k], part[k]);
  }
  EACH STORE_COLUMNS(to, UNSHIFT(FINISH(total[k], COUNT), top[k]))
}

// Reduces elements that are adjacent in x (t2 = 1), a vector at a time. A work-group of one
// work-item computes T_ROWS outputs.
__kernel SINGLE_ITEM
void reduce_rows(OUT(float, y), IN(float, x), SIZES) {
  const IDX_T whole = r2 / VW * VW;
  const IDX_T first = get_group_id(0) * T_ROWS;
  const IDX_T end = i_min(first + T_ROWS, d0 * d1 * d2);
  for (IDX_T output = first; output < end; ++output) {
    const IDX_T i01 = output / d2;
    const IDX_T i2 = output - i01 * d2;
    const IDX_T i0 = i01 / d1;
    const IDX_T i1 = i01 - i0 * d1;
    __global const float *const base = AT(x) + i0 * s0 + i1 * s1 + i2 * s2;
#if SHIFT
    F top = (F)(-INFINITY);
    OUTER {
      __global const float *run = base + j0 * t0 + j1 * t1;
      for (IDX_T j2 = 0; j2 < whole; j2 += VW) top = c_max(top, LOAD_F(run + j2));
      for (IDX_T j2 = whole; j2 < r2; ++j2) top = c_max(top, (F)(run[j2]));
    }
    FOLD(top, c_max)
    top = FINITE(top);
#endif
    F lanes = (F)(INIT), rest = (F)(INIT);
    OUTER {
      __global const float *run = base + j0 * t0 + j1 * t1;
      for (IDX_T j2 = 0; j2 < whole; j2 += VW) {
        const F v = SHIFTED(LOAD_F(run + j2), top);
        lanes = STEP(lanes, v);
      }
      for (IDX_T j2 = whole; j2 < r2; ++j2) {
        const F v = SHIFTED((F)(run[j2]), top);
        rest = STEP(rest, v);
      }
    }
    FOLD(lanes, JOIN)
    const F total = JOIN(lanes, rest);
    const F result = UNSHIFT(FINISH(total, COUNT), top);
    AT(y)[output] = result.s0;
  }
}

#if !SHIFT
#define FOUR(p, n, i) p[(i) * n], p[(i + 1) * n], p[(i + 2) * n], p[(i + 3) * n]
#if VW == 4
#define EVERY(p, n) (F)(FOUR((p), n, 0))
#elif VW == 8
#define EVERY(p, n) (F)(FOUR((p), n, 0), FOUR((p), n, 4))
#else
#define EVERY(p, n) (F)(FOUR((p), n, 0), FOUR((p), n, 4), FOUR((p), n, 8), FOUR((p), n, 12))
#endif
__kernel SINGLE_ITEM
void reduce_pieces(OUT(float, y), IN(float, x), const IDX_T outputs, const IDX_T item) {
  const IDX_T first = get_group_id(0) * item;
  const IDX_T end = i_min(first + item, outputs);
  for (IDX_T output = first; output < end; output += VW) {
    __global const float *const base = AT(x) + output * S_N;
    const IDX_T lanes = i_min(VW, end - output);
    F total = (F)(INIT);
    for (int j = 0; j < S_N; ++j) {
      F v = (F)(0.0f);
      if (lanes == VW)
        v = EVERY(base + j, S_N);
      else
        for (int lane = 0; lane < lanes; ++lane) ((float *)&v)[lane] = base[lane * S_N + j];
      total = STEP(total, v);
    }
    total = FINISH(total, ((DATA_N)S_N));
    if (lanes == VW)
      STORE_F(AT(y) + output, total);
    else
      store_lanes(AT(y) + output, total, lanes);
  }
}
#endif
#endif
