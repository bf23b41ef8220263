// Channels-last MaxPool and AveragePool over up to three axes, float32.
//   x  read: [images, in0, in1, in2] positions, x_pitch elements apart, of C channels
//   y  written: [images, out0, out1, out2] positions, y_pitch elements apart, of C channels
//   MEAN       1: mean; 0: maximum, NaN if any element is
//   PADDED     1: the divisor of a mean counts the positions in the padding, too
//   VW, T_VW   lanes per vector of pool_rows
//   pool_rows  (VW > 1) CPUs: one work-group of one work-item per row of y, numbered through all
//              images, in vectors of channels
//   pool_last  (VW 1) one work-item per (channel, position, image)
//   Geometry per axis: kernel window size, stride, dilation, pad and end padding before and after
#ifndef T_VW
#define T_VW 8
#define MEAN 0
#define PADDED 0
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/axes.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/taps.clh"
#define SIZES \
  const IDX_T C, const IDX_T x_pitch, const IDX_T y_pitch, PARAMS_3(in), PARAMS_3(out), PARAMS_3(kernel), PARAMS_3(stride), PARAMS_3(dilation), PARAMS_3(pad), PARAMS_3(end)

// Declares for axis a, at output coordinate p##a: input index f##a of the first tap, taps begin##a
// to until##a (exclusive) inside the image, and counted##a, the taps that a mean divides by.
#define WINDOW(a)                                                                  \
  const IDX_T f##a = p##a * stride##a - pad##a;                                    \
  const IDX_T begin##a = first_inside(f##a, dilation##a);                          \
  const IDX_T until##a = count_before(f##a, in##a, kernel##a, dilation##a);        \
  const IDX_T counted##a = COUNTED(f##a, in##a + (PADDED ? end##a : 0), kernel##a, dilation##a);

// Computes the result `v` of the windows along all axes for channels c to c + VW; READ loads at a
// pointer.
#define POOL(READ)                                                                       \
  F v = (F)(MEAN ? 0.0f : -INFINITY);                                                    \
  for (IDX_T k0 = begin0; k0 < until0; ++k0)                                             \
    for (IDX_T k1 = begin1; k1 < until1; ++k1) {                                         \
      const IDX_T i0 = f0 + k0 * dilation0, i1 = f1 + k1 * dilation1;                    \
      const IDX_T i2 = f2 + begin2 * dilation2;                                          \
      __global const float *from = image + ((i0 * in1 + i1) * in2 + i2) * x_pitch + c;   \
      for (IDX_T k2 = begin2; k2 < until2; ++k2, from += dilation2 * x_pitch) {          \
        const F element = READ(from);                                                    \
        v = MEAN ? v + element : c_max(v, element);                                      \
      }                                                                                  \
    }                                                                                    \
  if (MEAN) v = v / (F)((float)(counted0 * counted1 * counted2));

#if VW == 1
#define READ_ONE(p) (*(p))
__kernel void pool_last(OUT(float, y), IN(float, x), SIZES) {
  const IDX_T c = get_global_id(0), m = get_global_id(1);
  if (c >= C) return;
  const IDX_T row = m / out2, p0 = row / out1, p1 = row - p0 * out1, p2 = m - row * out2;
  __global const float *const image = AT(x) + (IDX_T)get_global_id(2) * in0 * in1 * in2 * x_pitch;
  WINDOW(0) WINDOW(1) WINDOW(2)
  POOL(READ_ONE)
  AT(y)[((IDX_T)get_global_id(2) * out0 * out1 * out2 + m) * y_pitch + c] = v;
}
#else
#include "common/rows.clh"
#define READ_PART(p) load_lanes(p, C - c, 0.0f)

__kernel SINGLE_ITEM void pool_rows(OUT(float, y), IN(float, x), SIZES) {
  const IDX_T row = get_global_id(0), plane = row / out1, of = plane / out0;
  const IDX_T p0 = plane - of * out0, p1 = row - plane * out1;
  __global const float *const image = AT(x) + of * in0 * in1 * in2 * x_pitch;
  WINDOW(0) WINDOW(1)
  for (IDX_T p2 = 0; p2 < out2; ++p2) {
    WINDOW(2)
    __global float *const to = AT(y) + (row * out2 + p2) * y_pitch;
    IDX_T c = 0;
    for (; c + VW <= C; c += VW) {
      POOL(LOAD_F)
      STORE_F(to + c, v);
    }
    if (c < C) {
      POOL(READ_PART)
      store_lanes(to + c, v, C - c);
    }
  }
}
#endif
