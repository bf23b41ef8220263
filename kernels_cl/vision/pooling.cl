// MaxPool, AveragePool and LpPool over up to three axes, channels first: y is the maximum, mean or
// norm of each window of x.
//   x  read: DATA_T [planes, s0, s1, s2];  y  written: DATA_T [planes, o0, o1, o2]. A plane is one
//      channel of one image
//   pool         (GPUs) one work-item per (column p2, row of a plane, plane): one element of y
//   pool_planar  (CPUs) a work-group of one work-item computes `height` of the `rows` rows of y,
//                which are numbered through all planes
//   MAX          1: maximum, NaN being the largest; 0: mean or norm
//   INDICES      1: also writes indices int64, of the shape of y: the maximum's index in x, in
//                row-major or, with COLUMN_MAJOR, column-major order
//   PADDED       1: the divisor of a mean counts positions in the padding, too
//   POWER(v), MEAN(total, count)  summand, and function of the sum: LpPool's norm
//   SPAN         elements of a row that pool_planar processes at once
//   VW, T_VW     lanes per vector of pool_planar;  LOWEST  least number of VALUE_T
//   DATA_T, VALUE_T  storage of x and y; type computed in;  SAME_T  1: DATA_T is VALUE_T
//   Geometry per axis: w window, b and e padding before and after, dl dilation, st stride
#include "common/base.clh"
#include "common/axes.clh"
#include "common/repeat.clh"
#include "common/storage.clh"
#include "common/taps.clh"
#ifndef DATA_T
#define DATA_T float
#define VALUE_T float
#define LOWEST (-INFINITY)
#endif
#ifndef POWER
#define POWER(v) (v)
#define MEAN(total, count) ((total) / (VALUE_T)(count))
#endif
// Converts a number to the type of v.
#define LIKE(v, number) ((__typeof__(v))(number))
#ifndef MAX
#define MAX 1
#define INDICES 0
#define COLUMN_MAJOR 0
#define PADDED 0
#endif
#ifndef SPAN
#define SPAN 512
#define SAME_T 1
#endif
#ifndef T_VW
#define T_VW 8
#endif
#define VW T_VW
#if INDICES
#define INDICES_OUTPUT , OUT(long, indices)
#else
#define INDICES_OUTPUT
#endif
#if MAX
#define INITIAL LOWEST
#define JOIN(best, v) (((best) > (v)) | ((best) != (best)) ? (best) : (v))
#define TERM(v) (v)
#define RESULT(v, count) (v)
#else
#define INITIAL 0
#define JOIN(total, v) ((total) + (v))
#define TERM(v) POWER(v)
#define RESULT(v, count) MEAN(v, count)
#endif

#define WINDOWS PARAMS_3(s), PARAMS_3(o), PARAMS_3(w), PARAMS_3(st), PARAMS_3(dl), PARAMS_3(b), PARAMS_3(e)

#if CPU
// Separable pooling: the w0 * w1 rows of x under a row of y are reduced to one row, `down`, then
// the w2 elements of each window of it, to `across`: w0 * w1 + w2 steps, not their product.
typedef CAT(VALUE_T, VW) V;
typedef V __attribute__((aligned(sizeof(VALUE_T)))) V_UNALIGNED;
#define LOAD_V(p) (*(const V_UNALIGNED *)(p))
#define STORE_V(p, v) *(V_UNALIGNED *)(p) = (v)
#if SAME_T
#define LOAD_X(p) (*(__global const V_UNALIGNED *)(p))
#define STORE_Y(p, v) *(__global V_UNALIGNED *)(p) = (v)
#else
static inline V LOAD_X(__global const DATA_T *p) {
  V v;
  for (int lane = 0; lane < VW; ++lane) ((VALUE_T *)&v)[lane] = LOAD(p, lane);
  return v;
}
static inline void STORE_Y(__global DATA_T *p, const V v) {
  for (int lane = 0; lane < VW; ++lane) STORE(p, lane, ((const VALUE_T *)&v)[lane]);
}
#endif

// JOIN_…(k) combines vector v<k>, at element i + k * VW of a row, with a vector: JOIN_X with one of
// x, the others with elements of `down`, for windows that are 1, 2 or any number of elements apart.
#define START(k) V v##k = (V)(INITIAL);
#define JOIN_X(k)                           \
  {                                         \
    const V element = LOAD_X(p + k * VW); \
    v##k = JOIN(v##k, TERM(element));       \
  }
#define JOIN_1(k) v##k = JOIN(v##k, LOAD_V(p + k * VW));
// Lanes past the last window repeat it: with their stride they might read anywhere.
#define JOIN_ANY(k)                                                                       \
  {                                                                                       \
    V element;                                                                            \
    for (int lane = 0; lane < VW; ++lane) {                                               \
      const IDX_T window = k * VW + lane;                                                 \
      ((VALUE_T *)&element)[lane] = p[(window < n - i ? window : n - i - 1) * st2];       \
    }                                                                                     \
    v##k = JOIN(v##k, element);                                                           \
  }
#ifdef SIMULATOR
// Oclgrind 21.10 crashes when it checks two shuffled vectors for uninitialized lanes.
#define JOIN_2 JOIN_ANY
#else
#define JOIN_2(k)                                                                         \
  {                                                                                       \
    const V a = LOAD_V(p + 2 * k * VW), b = LOAD_V(p + (2 * k + 1) * VW);             \
    const V element = (V)(a.even, b.even);                                                \
    v##k = JOIN(v##k, element);                                                           \
  }
#endif
#define STORE_DOWN(k) STORE_V(down + i + k * VW, v##k);
#define STORE_ACROSS(k) STORE_V(across + i + k * VW, v##k);

#define FOLD_DOWN(VECTORS)                                                           \
  {                                                                                  \
    VECTORS(START)                                                                   \
    for (IDX_T k0 = 0; k0 < n0; ++k0)                                                \
      for (IDX_T k1 = 0; k1 < n1; ++k1) {                                            \
        __global const DATA_T *const p = from + k0 * step0 + k1 * step1 + i;         \
        VECTORS(JOIN_X)                                                              \
      }                                                                              \
    VECTORS(STORE_DOWN)                                                              \
  }
#define FOLD_ACROSS(VECTORS, JOIN_VECTOR)                                            \
  {                                                                                  \
    VECTORS(START)                                                                   \
    const VALUE_T *p = down + i * st2;                                               \
    for (IDX_T k2 = 0; k2 < w2; ++k2, p += dl2) { VECTORS(JOIN_VECTOR) }             \
    VECTORS(STORE_ACROSS)                                                            \
  }
#define FOLD_WINDOWS(JOIN_VECTOR)                                                    \
  {                                                                                  \
    IDX_T i = 0;                                                                     \
    for (; i + 4 * VW <= n; i += 4 * VW) FOLD_ACROSS(ROWS_4, JOIN_VECTOR)        \
    for (; i < n; i += VW) FOLD_ACROSS(ROWS_1, JOIN_VECTOR)                        \
  }
// The last vector overlaps the previous one.
#define FINISH_ROW(count)                                                            \
  {                                                                                  \
    for (IDX_T i = 0; n < VW && i < n; ++i) STORE(to, i, RESULT(across[i], count)); \
    for (IDX_T next = 0; n >= VW && next < n; next += VW) {                      \
      const IDX_T i = min(next, n - VW);                                           \
      STORE_Y(to + i, RESULT(LOAD_V(across + i), count));                            \
    }                                                                                \
  }
// Finishes window i of a row, whose divisor excludes the padding along axis 2.
#define FINISH(i) STORE(to, i, RESULT(across[i], planar * COUNTED(f2 + (i) * st2, end2, w2, dl2)));

__kernel SINGLE_ITEM
void pool_planar(OUT(DATA_T, y), IN(DATA_T, x), const IDX_T rows, const IDX_T height, WINDOWS) {
  // Padded, since the last vectors may exceed the requested elements.
  VALUE_T down[SPAN + 3 * VW], across[SPAN + VW];
  const IDX_T begin = (IDX_T)get_group_id(0) * height, last = min(begin + height, rows);
  const IDX_T reach = (w2 - 1) * dl2, chunk = (SPAN - 1 - reach) / st2 + 1;
  const IDX_T step1 = dl1 * s2, step0 = dl0 * s1 * s2;
  // No %, which LLVM would merge with / by a `freeze` that Oclgrind cannot run.
  const IDX_T first = begin / o1;
  IDX_T plane = first / o0, p0 = first - plane * o0, p1 = begin - first * o1;
  for (IDX_T row = begin; row < last; ++row) {
    const IDX_T f0 = p0 * st0 - b0, f1 = p1 * st1 - b1;
    const IDX_T k0 = first_inside(f0, dl0), n0 = count_before(f0, s0, w0, dl0) - k0;
    const IDX_T k1 = first_inside(f1, dl1), n1 = count_before(f1, s1, w1, dl1) - k1;
    __global const DATA_T *const image =
        AT(x) + ((plane * s0 + f0 + k0 * dl0) * s1 + f1 + k1 * dl1) * s2;
    for (IDX_T p2 = 0; p2 < o2; p2 += chunk) {
      const IDX_T n = min(chunk, o2 - p2), f2 = p2 * st2 - b2, width = (n - 1) * st2 + reach + 1;
      const IDX_T left = min(max(0, -f2), width), right = max(left, min(width, s2 - f2));
      __global const DATA_T *const from = image + f2;
      for (IDX_T i = 0; i < left; i += VW) STORE_V(down + i, (V)(INITIAL));
      IDX_T i = left;
      for (; i + 4 * VW <= right; i += 4 * VW) FOLD_DOWN(ROWS_4)
      for (; right - left >= VW && i < right; i += VW) {
        i = min(i, right - VW);
        FOLD_DOWN(ROWS_1)
      }
      for (; i < right; ++i) {
        down[i] = INITIAL;
        for (IDX_T j0 = 0; j0 < n0; ++j0)
          for (IDX_T j1 = 0; j1 < n1; ++j1) {
            const VALUE_T v = LOAD(from, j0 * step0 + j1 * step1 + i);
            down[i] = JOIN(down[i], TERM(v));
          }
      }
      for (i = right; i < width + 2 * VW; i += VW) STORE_V(down + i, (V)(INITIAL));
      if (st2 == 1)
        FOLD_WINDOWS(JOIN_1)
      else if (st2 == 2)
        FOLD_WINDOWS(JOIN_2)
      else
        FOLD_WINDOWS(JOIN_ANY)
      __global DATA_T *const to = AT(y) + row * o2 + p2;
#if MAX
      FINISH_ROW(0)
#else
      const IDX_T end0 = PADDED ? s0 + e0 : s0, end1 = PADDED ? s1 + e1 : s1;
      const IDX_T end2 = PADDED ? s2 + e2 : s2;
      const IDX_T planar = COUNTED(f0, end0, w0, dl0) * COUNTED(f1, end1, w1, dl1);
      FINISH_ROW(planar * w2)
      for (i = 0; !PADDED && i < n && f2 + i * st2 < 0; ++i) FINISH(i)
      for (i = count_before(f2, end2 - reach, n, st2); i < n; ++i) FINISH(i)
#endif
    }
    if (++p1 < o1) continue;
    p1 = 0;
    if (++p0 < o0) continue;
    p0 = 0;
    ++plane;
  }
}

#else
__kernel void pool(OUT(DATA_T, y) INDICES_OUTPUT, IN(DATA_T, x), const IDX_T planes, WINDOWS) {
  GLOBAL_XYZ(p2, p01, plane, o2, o0 * o1)
  if (p2 >= o2 || p01 >= o0 * o1 || (uint)plane >= (uint)planes) return;
  const IDX_T p0 = p01 / o1;
  const IDX_T f0 = p0 * st0 - b0, f1 = (p01 - p0 * o1) * st1 - b1, f2 = p2 * st2 - b2;
  const IDX_T from = plane * s0 * s1 * s2;
  // Only taps inside x: the padding may contain many more.
  const IDX_T end0 = count_before(f0, s0, w0, dl0), end1 = count_before(f1, s1, w1, dl1);
  const IDX_T end2 = count_before(f2, s2, w2, dl2);
  VALUE_T result = INITIAL;
  IDX_T found = -1;
  for (IDX_T k0 = first_inside(f0, dl0); k0 < end0; ++k0)
    for (IDX_T k1 = first_inside(f1, dl1); k1 < end1; ++k1)
      for (IDX_T k2 = first_inside(f2, dl2); k2 < end2; ++k2) {
        const IDX_T i0 = f0 + k0 * dl0, i1 = f1 + k1 * dl1, i2 = f2 + k2 * dl2;
        const VALUE_T v = LOAD(AT(x), from + (i0 * s1 + i1) * s2 + i2);
#if INDICES
        if (found < 0 || (result == result && !(v <= result)))
          found = COLUMN_MAJOR ? (i2 * s1 + i1) * s0 + i0 : (i0 * s1 + i1) * s2 + i2;
#endif
        result = JOIN(result, TERM(v));
      }
#if !MAX
  const IDX_T count = COUNTED(f0, PADDED ? s0 + e0 : s0, w0, dl0) *
                      COUNTED(f1, PADDED ? s1 + e1 : s1, w1, dl1) *
                      COUNTED(f2, PADDED ? s2 + e2 : s2, w2, dl2);
#endif
  const IDX_T at = (plane * o0 * o1 + p01) * o2 + p2;
#if INDICES
  AT(indices)[at] = found < 0 ? -1 : from + found;
#endif
  STORE(AT(y), at, RESULT(result, count));
}
#endif
