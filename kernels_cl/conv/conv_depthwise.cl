// Conv with one input channel to a group: plane o of y is plane o / maps of x, correlated, and then
// what the epilogue makes of it.
//   conv_depthwise_cpu  float32; a work-item computes `rows` rows of a plane, and walks the columns
//                       that lie inside for each weight
//   conv_depthwise_any  (VW 1) an output element per work-item (column, row, plane)
// s: sizes of x, o: of y; w: window; st: strides; dl: dilations; b: padding before.
// INPUTS, READS, BODY, RESULT as in gemm_cpu.cl: i0 is the image, i1 the group, m the map of a
// group, n the position in a plane.
#ifndef T_VW
#define T_VW 8
#endif
#ifndef VW
#define VW T_VW
#endif
#ifndef DATA_T
#define DATA_T float
#define Y_T float
#define Y_STORAGE plain
#endif
#include "common/base.clh"
#include "common/axes.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#define GEOMETRY                                                                            \
  const IDX_T outputs, const IDX_T maps, const IDX_T rows, THREE(s), THREE(o), THREE(w),    \
      THREE(st), THREE(dl), THREE(b)

#define START_PLANE                                                        \
  const IDX_T i0 = plane / outputs, channel = plane - i0 * outputs;        \
  const IDX_T i1 = channel / maps, m = channel - i1 * maps;                \
  const IDX_T source = (i0 * (outputs / maps) + i1) * s0 * s1 * s2;

#if VW == 1
#define PLACE(k) (i0 * x##k##_s0 + i1 * x##k##_s1 + m * x##k##_sm)
#define COLUMNS(k, storage) LOAD_AS(storage, AT(x##k), PLACE(k) + n)
#define ROW(k, storage) LOAD_AS(storage, AT(x##k), PLACE(k))

__kernel void conv_depthwise_any(OUT(Y_T, y), IN(DATA_T, x), IN(DATA_T, weights), GEOMETRY INPUTS) {
  const IDX_T p2 = get_global_id(0), row = get_global_id(1), plane = get_global_id(2);
  if (p2 >= o2) return;
  START_PLANE
  const IDX_T r0 = row / o1, n = row * o2 + p2;
  const IDX_T f0 = r0 * st0 - b0, f1 = (row - r0 * o1) * st1 - b1, f2 = p2 * st2 - b2;
  F v0 = 0;
  for (IDX_T k0 = 0; k0 < w0; ++k0)
    for (IDX_T k1 = 0; k1 < w1; ++k1)
      for (IDX_T k2 = 0; k2 < w2; ++k2) {
        const IDX_T from0 = f0 + k0 * dl0, from1 = f1 + k1 * dl1, from2 = f2 + k2 * dl2;
        if (from0 < 0 || from0 >= s0 || from1 < 0 || from1 >= s1 || from2 < 0 || from2 >= s2) continue;
        v0 += LOAD(AT(weights), ((channel * w0 + k0) * w1 + k1) * w2 + k2) *
              LOAD(AT(x), source + (from0 * s1 + from1) * s2 + from2);
      }
  READS BODY
  STORE_AS(Y_STORAGE, AT(y), plane * o0 * o1 * o2 + n, RESULT);
}
#else
#include "common/rows.clh"
#include "common/finish.clh"
#define VECTORS_AT_ONCE 8

__kernel SINGLE_ITEM
void conv_depthwise_cpu(OUT(float, y), IN(float, x), IN(float, weights), GEOMETRY INPUTS) {
  const IDX_T plane = get_global_id(1);
  START_PLANE
  const IDX_T end = min(o0 * o1, (IDX_T)(get_global_id(0) + 1) * rows);
  __global float *const y_plane = AT(y) + plane * o0 * o1 * o2;
  for (IDX_T row = get_global_id(0) * rows; row < end; ++row) {
    const IDX_T r0 = row / o1;
    const IDX_T f0 = r0 * st0 - b0, f1 = (row - r0 * o1) * st1 - b1;
    for (IDX_T column = 0; column < o2; column += VECTORS_AT_ONCE * VW) {
      const IDX_T count = min((IDX_T)(VECTORS_AT_ONCE * VW), o2 - column);
      F sums[VECTORS_AT_ONCE];
      float *const sum = (float *)sums;
      for (IDX_T j = 0; j < VECTORS_AT_ONCE; ++j) sums[j] = (F)(0.0f);
      for (IDX_T k0 = 0; k0 < w0; ++k0)
        for (IDX_T k1 = 0; k1 < w1; ++k1) {
          const IDX_T from0 = f0 + k0 * dl0, from1 = f1 + k1 * dl1;
          if (from0 < 0 || from0 >= s0 || from1 < 0 || from1 >= s1) continue;
          __global const float *const line = AT(x) + source + (from0 * s1 + from1) * s2;
          for (IDX_T k2 = 0; k2 < w2; ++k2) {
            const float weight = AT(weights)[((channel * w0 + k0) * w1 + k1) * w2 + k2];
            const IDX_T from2 = column * st2 - b2 + k2 * dl2;
            const IDX_T low = from2 >= 0 ? 0 : (st2 - 1 - from2) / st2;
            const IDX_T high = from2 < s2 ? min(count, (s2 - 1 - from2) / st2 + 1) : 0;
            if (st2 == 1)
              for (IDX_T j = low; j < high; ++j) sum[j] += weight * line[from2 + j];
            else
              for (IDX_T j = low; j < high; ++j) sum[j] += weight * line[from2 + j * st2];
          }
        }
      for (IDX_T j = 0; j < count; j += VW) {
        const IDX_T n = row * o2 + column + j, N = n + count - j;
        const F v0 = sums[j / VW];
        READS BODY
        store_columns(y_plane + n, RESULT, N - n);
      }
    }
  }
}
#endif
