// A reduction over up to three merged axes, by outputs of up to three merged axes.
// The element of output (i0, i1, i2) and reduced (j0, j1, j2) is i . s + j . t.
//   INIT, STEP(a, x), JOIN(a, b), FINISH(a, n)   the operation; SHIFT: x - the maximum is reduced
//   reduce_strided   one work-item per output, any dtype
//   reduce_columns   s2 = 1: VW outputs side by side; reduce_rows: t2 = 1: VW partial results
#include "common/base.clh"
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
#define HALF 0
#endif
#ifndef VW
#define VW 1
#endif
#include "common/math.clh"
#include "common/scalar.clh"
#if VW > 1
#include "common/rows.clh"
#endif

#define SIZES \
  const IDX_T d0, const IDX_T d1, const IDX_T d2, const IDX_T r0, const IDX_T r1, \
  const IDX_T r2, const IDX_T s0, const IDX_T s1, const IDX_T s2, const IDX_T t0, \
  const IDX_T t1, const IDX_T t2
#define COUNT ((DATA_N)(r0 * r1 * r2))
#if HALF
#define READ(i) vload_half((i), AT(x))
#define WRITE(i, v) vstore_half((v), (i), AT(y))
#else
#define READ(i) (AT(x)[i])
#define WRITE(i, v) AT(y)[i] = (v)
#endif
// The count is in the type of the mean: integers divide as integers.
#ifndef DATA_N
#define DATA_N float
#endif

#define OUTER \
  for (IDX_T j0 = 0; j0 < r0; ++j0) \
    for (IDX_T j1 = 0; j1 < r1; ++j1)
#define FINITE(v) PICK(c_abs(v) <= (F)(FLT_MAX), v, (F)(0.0f))
#if SHIFT
#define SHIFTED(v) ((v) - shift)
#define UNSHIFT(v) ((v) + shift)
#else
#define SHIFTED(v) (v)
#define UNSHIFT(v) (v)
#endif

#if VW == 1
__kernel void reduce_strided(OUT(DATA_T, y), IN(DATA_T, x), SIZES) {
  const IDX_T i2 = get_global_id(0), i1 = get_global_id(1), i0 = get_global_id(2);
  if (i2 >= d2 || i1 >= d1 || i0 >= d0) return;
  const IDX_T base = i0 * s0 + i1 * s1 + i2 * s2;
#if SHIFT
  F top = (F)(-INFINITY);
  OUTER for (IDX_T j2 = 0; j2 < r2; ++j2)
    top = c_max(top, READ(base + j0 * t0 + j1 * t1 + j2 * t2));
  const F shift = FINITE(top);
#endif
  // One partial result per run: the error grows with the length of a run, not with their number.
  ACC_T total = INIT;
  OUTER {
    const IDX_T run = base + j0 * t0 + j1 * t1;
    ACC_T part = INIT;
    for (IDX_T j2 = 0; j2 < r2; ++j2) {
      const ACC_T v = SHIFTED(READ(run + j2 * t2));
      part = STEP(part, v);
    }
    total = JOIN(total, part);
  }
  WRITE((i0 * d1 + i1) * d2 + i2, UNSHIFT(FINISH(total, COUNT)));
}

#else
static inline F lanes_from(__global const float *p, IDX_T count) {
  F v = (F)(p[0]);
  for (IDX_T lane = 1; lane < count; ++lane) ((float *)&v)[lane] = p[lane];
  return v;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void reduce_columns(OUT(float, y), IN(float, x), SIZES) {
  const IDX_T i2 = get_group_id(0) * VW, i1 = get_group_id(1), i0 = get_group_id(2);
  const IDX_T valid = i_min(VW, d2 - i2);
  __global const float *base = AT(x) + i0 * s0 + i1 * s1 + i2;
#define COLUMNS(p) (valid == VW ? LOAD_F(p) : lanes_from(p, valid))
#if SHIFT
  F top = (F)(-INFINITY);
  OUTER for (IDX_T j2 = 0; j2 < r2; ++j2)
    top = c_max(top, COLUMNS(base + j0 * t0 + j1 * t1 + j2 * t2));
  const F shift = FINITE(top);
#endif
  F total = (F)(INIT);
  OUTER {
    __global const float *run = base + j0 * t0 + j1 * t1;
    F part = (F)(INIT);
    for (IDX_T j2 = 0; j2 < r2; ++j2) {
      const F v = SHIFTED(COLUMNS(run + j2 * t2));
      part = STEP(part, v);
    }
    total = JOIN(total, part);
  }
  const F result = UNSHIFT(FINISH(total, COUNT));
  __global float *to = AT(y) + (i0 * d1 + i1) * d2 + i2;
  for (IDX_T lane = 0; lane < valid; ++lane) to[lane] = ((const float *)&result)[lane];
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void reduce_rows(OUT(float, y), IN(float, x), SIZES) {
  const IDX_T i2 = get_group_id(0), i1 = get_group_id(1), i0 = get_group_id(2);
  __global const float *base = AT(x) + i0 * s0 + i1 * s1 + i2 * s2;
  const IDX_T whole = r2 / VW * VW;
#if SHIFT
  F tops = (F)(-INFINITY);
  OUTER {
    __global const float *run = base + j0 * t0 + j1 * t1;
    for (IDX_T j2 = 0; j2 < whole; j2 += VW) tops = c_max(tops, LOAD_F(run + j2));
    for (IDX_T j2 = whole; j2 < r2; ++j2) tops = c_max(tops, (F)(run[j2]));
  }
  const F shift = FINITE((F)(lane_max(tops)));
#endif
  F lanes = (F)(INIT), rest = (F)(INIT);
  OUTER {
    __global const float *run = base + j0 * t0 + j1 * t1;
    for (IDX_T j2 = 0; j2 < whole; j2 += VW) {
      const F v = SHIFTED(LOAD_F(run + j2));
      lanes = STEP(lanes, v);
    }
    for (IDX_T j2 = whole; j2 < r2; ++j2) {
      const F v = SHIFTED((F)(run[j2]));
      rest = STEP(rest, v);
    }
  }
  F total = rest;
  for (int lane = 0; lane < VW; ++lane) total = JOIN(total, (F)(((const float *)&lanes)[lane]));
  const F result = UNSHIFT(FINISH(total, COUNT));
  AT(y)[(i0 * d1 + i1) * d2 + i2] = ((const float *)&result)[0];
}
#endif
