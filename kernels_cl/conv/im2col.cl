// im2col: gathers the elements of x under the window at each output position, as columns of a
// matrix.
//   x  read: DATA_T [batch, channels, in0, in1, in2]; a batch is one group of one image, `channels`
//      are those of the group
//   y  written: DATA_T [batch][panel][K][width]: element (k, p) is the input under window element k
//      (channel first) at output position p; 0 in the padding and past position P. A single panel
//      of P columns is the row-major matrix [K][P]
//   width  columns per panel;  columns  P rounded up to whole panels;  batches  number of batches
//   Geometry, one argument per spatial axis 0 to 2: in, out: sizes of x and y; kernel: window size;
//     stride; dilation; pad: padding before
//   im2col_cpu  one work-group of one work-item per (panel, batch): copies runs of input rows
//   im2col      one work-item per (position, window element k, batch)
// DATA_T is an unsigned integer type of the elements' size.
#include "common/base.clh"
#include "common/axes.clh"
#ifndef DATA_T
#define DATA_T uint
#endif
#define GEOMETRY \
  const IDX_T P, const IDX_T K, const IDX_T width, const IDX_T columns, const IDX_T batches, \
      const IDX_T channels, PARAMS_3(in), PARAMS_3(out), PARAMS_3(kernel), PARAMS_3(stride), \
      PARAMS_3(dilation), PARAMS_3(pad)

__kernel SINGLE_ITEM
void im2col_cpu(OUT(DATA_T, y), IN(DATA_T, x), GEOMETRY) {
  const IDX_T panel = get_global_id(0), batch = get_global_id(1);
  __global DATA_T *const to = AT(y) + batch * columns * K + panel * K * width;
  __global const DATA_T *const from = AT(x) + batch * channels * in0 * in1 * in2;
  IDX_T lane = 0;
  while (lane < width) {
    // A run of positions in one row of the output; positions past P are zeroed.
    const IDX_T p = panel * width + lane;
    const bool real = p < P;
    const IDX_T row = p / out2, column = p - row * out2;
    const IDX_T run = real ? min(width - lane, out2 - column) : width - lane;
    const IDX_T r0 = row / out1;
    const IDX_T f0 = r0 * stride0 - pad0, f1 = (row - r0 * out1) * stride1 - pad1;
    const IDX_T f2 = column * stride2 - pad2;
    __global DATA_T *line = to + lane;
    for (IDX_T c = 0; c < channels; ++c)
      for (IDX_T w0 = 0; w0 < kernel0; ++w0)
        for (IDX_T w1 = 0; w1 < kernel1; ++w1) {
          const IDX_T i0 = f0 + w0 * dilation0, i1 = f1 + w1 * dilation1;
          const bool inside = real && i0 >= 0 && i0 < in0 && i1 >= 0 && i1 < in1;
          __global const DATA_T *const source = from + ((c * in0 + i0) * in1 + i1) * in2;
          for (IDX_T w2 = 0; w2 < kernel2; ++w2, line += width) {
            const IDX_T i2 = f2 + w2 * dilation2;
            // Lanes whose input is inside the row.
            IDX_T low = i2 >= 0 ? 0 : (stride2 - 1 - i2) / stride2;
            IDX_T high = i2 < in2 ? (in2 - 1 - i2) / stride2 + 1 : 0;
            low = inside ? min(low, run) : run;
            high = inside ? max(min(high, run), low) : run;
            for (IDX_T j = 0; j < low; ++j) line[j] = 0;
            if (stride2 == 1)
              for (IDX_T j = low; j < high; ++j) line[j] = source[i2 + j];
            else
              for (IDX_T j = low; j < high; ++j) line[j] = source[i2 + j * stride2];
            for (IDX_T j = high; j < run; ++j) line[j] = 0;
          }
        }
    lane += run;
  }
}

__kernel void im2col(OUT(DATA_T, y), IN(DATA_T, x), GEOMETRY) {
  const IDX_T p = get_global_id(0);
  const IDX_T k = get_global_id(1);
  const IDX_T batch = get_global_id(2);
  if (p >= columns || k >= K || batch >= batches) return;
  const IDX_T w2 = k % kernel2;
  const IDX_T w1 = k / kernel2 % kernel1;
  const IDX_T w0 = k / kernel2 / kernel1 % kernel0;
  const IDX_T channel = k / kernel2 / kernel1 / kernel0;
  const IDX_T i2 = p % out2 * stride2 + w2 * dilation2 - pad2;
  const IDX_T i1 = p / out2 % out1 * stride1 + w1 * dilation1 - pad1;
  const IDX_T i0 = p / out2 / out1 * stride0 + w0 * dilation0 - pad0;
  const bool inside = p < P && i0 >= 0 && i0 < in0 && i1 >= 0 && i1 < in1 && i2 >= 0 && i2 < in2;
  const IDX_T panel = p / width;
  AT(y)[batch * columns * K + (panel * K + k) * width + (p - panel * width)] =
      inside ? AT(x)[(((batch * channels + channel) * in0 + i0) * in1 + i1) * in2 + i2] : (DATA_T)0;
}
