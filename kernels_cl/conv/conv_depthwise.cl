// Conv with one input channel to a group: plane o of y is plane o / maps of x, correlated.
//   conv_depthwise_cpu  float32; a work-item computes `rows` rows of a plane, and walks the columns
//                       that lie inside for each weight
//   conv_depthwise_any  an output element per work-item (column, row, plane)
// s: sizes of x, o: of y; w: window; st: strides; dl: dilations; b: padding before.
#include "common/base.clh"
#include "common/axes.clh"
#include "common/bias.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define VALUE_T float
#endif
#define GEOMETRY                                                                            \
  const IDX_T planes, const IDX_T outputs, const IDX_T maps, const IDX_T rows, THREE(s),    \
      THREE(o), THREE(w), THREE(st), THREE(dl), THREE(b)
#define COLUMNS 64

#define START_PLANE                                                        \
  const IDX_T image = plane / outputs, channel = plane - image * outputs;  \
  const IDX_T source = (image * (outputs / maps) + channel / maps) * s0 * s1 * s2;

__kernel SINGLE_ITEM
void conv_depthwise_cpu(OUT(DATA_T, y), IN(DATA_T, x), IN(DATA_T, weights) BIAS_INPUT, GEOMETRY) {
  const IDX_T plane = get_global_id(1);
  START_PLANE
  const IDX_T end = min(o0 * o1, (IDX_T)(get_global_id(0) + 1) * rows);
  for (IDX_T row = get_global_id(0) * rows; row < end; ++row) {
    const IDX_T r0 = row / o1;
    const IDX_T f0 = r0 * st0 - b0, f1 = (row - r0 * o1) * st1 - b1;
    for (IDX_T column = 0; column < o2; column += COLUMNS) {
      const IDX_T count = min((IDX_T)COLUMNS, o2 - column);
      VALUE_T sum[COLUMNS];
      for (IDX_T j = 0; j < COLUMNS; ++j) sum[j] = BIAS_OF(channel);
      for (IDX_T k0 = 0; k0 < w0; ++k0)
        for (IDX_T k1 = 0; k1 < w1; ++k1) {
          const IDX_T i0 = f0 + k0 * dl0, i1 = f1 + k1 * dl1;
          if (i0 < 0 || i0 >= s0 || i1 < 0 || i1 >= s1) continue;
          __global const DATA_T *const line = AT(x) + source + (i0 * s1 + i1) * s2;
          for (IDX_T k2 = 0; k2 < w2; ++k2) {
            const VALUE_T weight =
                LOAD(AT(weights), ((channel * w0 + k0) * w1 + k1) * w2 + k2);
            const IDX_T i2 = column * st2 - b2 + k2 * dl2;
            const IDX_T low = i2 >= 0 ? 0 : (st2 - 1 - i2) / st2;
            const IDX_T high = i2 < s2 ? min(count, (s2 - 1 - i2) / st2 + 1) : 0;
            if (st2 == 1)
              for (IDX_T j = low; j < high; ++j) sum[j] += weight * LOAD(line, i2 + j);
            else
              for (IDX_T j = low; j < high; ++j) sum[j] += weight * LOAD(line, i2 + j * st2);
          }
        }
      __global DATA_T *const to = AT(y) + (plane * o0 * o1 + row) * o2 + column;
      for (IDX_T j = 0; j < count; ++j) STORE(to, j, sum[j]);
    }
  }
}

__kernel void conv_depthwise_any(OUT(DATA_T, y), IN(DATA_T, x), IN(DATA_T, weights) BIAS_INPUT,
                                 GEOMETRY) {
  const IDX_T p2 = get_global_id(0), row = get_global_id(1), plane = get_global_id(2);
  if (p2 >= o2) return;
  START_PLANE
  const IDX_T r0 = row / o1;
  const IDX_T f0 = r0 * st0 - b0, f1 = (row - r0 * o1) * st1 - b1, f2 = p2 * st2 - b2;
  VALUE_T sum = BIAS_OF(channel);
  for (IDX_T k0 = 0; k0 < w0; ++k0)
    for (IDX_T k1 = 0; k1 < w1; ++k1)
      for (IDX_T k2 = 0; k2 < w2; ++k2) {
        const IDX_T i0 = f0 + k0 * dl0, i1 = f1 + k1 * dl1, i2 = f2 + k2 * dl2;
        if (i0 < 0 || i0 >= s0 || i1 < 0 || i1 >= s1 || i2 < 0 || i2 >= s2) continue;
        sum += LOAD(AT(weights), ((channel * w0 + k0) * w1 + k1) * w2 + k2) *
               LOAD(AT(x), source + (i0 * s1 + i1) * s2 + i2);
      }
  STORE(AT(y), (plane * o0 * o1 + row) * o2 + p2, sum);
}
