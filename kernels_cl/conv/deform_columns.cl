// im2col of a deformable 2-D convolution: gathers the elements under the window at each output
// position, each bilinearly interpolated in x at its window position plus an offset (0 outside of
// x), times an optional mask. Storage DATA_T, computed in float32.
//   x        read: [images, channels, height, width]
//   offsets  read: [images, groups, K, 2 (vertical, horizontal), positions]; channels / groups
//            adjacent channels share offsets and mask
//   mask     read: [images, groups, K, positions], if macro MASK is 1
//   y        written: [images * channels][K][positions]; K = w0 * w1 window elements, positions =
//            rows * columns
//   w, st, dl, b  window, strides, dilations and padding before, along axes 0 and 1
// One work-item per (position, window element, image * channels + channel).
#include "common/base.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define MASK 1
#endif
#if MASK
#define MASK_INPUT , IN(DATA_T, mask)
#else
#define MASK_INPUT
#endif

__kernel void deform_columns(OUT(DATA_T, y), IN(DATA_T, x), IN(DATA_T, offsets) MASK_INPUT,
                             const IDX_T channels, const IDX_T groups, const IDX_T height,
                             const IDX_T width, const IDX_T rows, const IDX_T columns,
                             const IDX_T w0, const IDX_T w1, const IDX_T st0, const IDX_T st1,
                             const IDX_T dl0, const IDX_T dl1, const IDX_T b0, const IDX_T b1) {
  const IDX_T p = get_global_id(0), k = get_global_id(1), plane = get_global_id(2);
  const IDX_T positions = rows * columns, K = w0 * w1;
  if (p >= positions) return;
  const IDX_T image = plane / channels;
  const IDX_T group = (plane - image * channels) / (channels / groups);
  const IDX_T k0 = k / w1, p0 = p / columns;
  const IDX_T k1 = k - k0 * w1, p1 = p - p0 * columns;
  const IDX_T place = (image * groups + group) * K + k;
  const float v = p0 * st0 - b0 + k0 * dl0 + LOAD(AT(offsets), 2 * place * positions + p);
  const float u = p1 * st1 - b1 + k1 * dl1 + LOAD(AT(offsets), (2 * place + 1) * positions + p);
  float sum = 0.0f;
  if (v > -1.0f && v < height && u > -1.0f && u < width) {
    const IDX_T v0 = (IDX_T)floor(v), u0 = (IDX_T)floor(u);
    __global const DATA_T *const from = AT(x) + plane * height * width;
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 2; ++j) {
        const IDX_T a = v0 + i, b = u0 + j;
        if (a >= 0 && a < height && b >= 0 && b < width)
          sum += (1.0f - fabs(v - a)) * (1.0f - fabs(u - b)) * LOAD(from, a * width + b);
      }
  }
#if MASK
  sum *= LOAD(AT(mask), place * positions + p);
#endif
  STORE(AT(y), (plane * K + k) * positions + p, sum);
}
