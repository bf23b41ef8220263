// MaxRoiPool: divides each region of an image into rows x columns bins; y is the maximum of each
// bin (NaN if any pixel is), 0 if the bin is empty.
//   x     read: DATA_T [images, channels, height, width]
//   rois  read: DATA_T [regions, 5]: image, x1, y1, x2, y2, which times `scale` are pixels. An
//         image index out of range is reported in `status`
//   y     written: DATA_T [regions, channels, rows, columns]
// One work-item per (bin column, bin row, region * channels + channel).
#include "common/base.clh"
#include "common/math.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#endif
// Nearest pixel; NaN and numbers beyond the index range are far outside.
#define FAR 268435456.0f
#define PIXEL(k) (IDX_T)fmin(fmax(round(LOAD(AT(rois), region * 5 + (k)) * scale), -FAR), FAR)

__kernel void max_roi_pool(OUT(DATA_T, y), IN(DATA_T, x), IN(DATA_T, rois), OUT(long, status),
                           const IDX_T images, const IDX_T channels, const IDX_T height,
                           const IDX_T width, const IDX_T rows, const IDX_T columns,
                           const float scale) {
  const IDX_T column = get_global_id(0), row = get_global_id(1), plane = get_global_id(2);
  if (column >= columns) return;
  const IDX_T region = plane / channels;
  const IDX_T channel = plane - region * channels;
  const float number = LOAD(AT(rois), region * 5);
  const bool found = number > -1.0f && number < images;
  if (!found) AT(status)[0] = as_int(number);
  const IDX_T image = found ? (IDX_T)number : 0;
  const IDX_T left = PIXEL(1), top = PIXEL(2), right = PIXEL(3), bottom = PIXEL(4);
  const float high = (float)max(bottom - top + 1, (IDX_T)1) / rows;
  const float wide = (float)max(right - left + 1, (IDX_T)1) / columns;
  const IDX_T v0 = clamp((IDX_T)floor(row * high) + top, (IDX_T)0, height);
  const IDX_T v1 = clamp((IDX_T)ceil((row + 1) * high) + top, (IDX_T)0, height);
  const IDX_T u0 = clamp((IDX_T)floor(column * wide) + left, (IDX_T)0, width);
  const IDX_T u1 = clamp((IDX_T)ceil((column + 1) * wide) + left, (IDX_T)0, width);
  __global const DATA_T *const from = AT(x) + (image * channels + channel) * height * width;
  float best = v1 > v0 && u1 > u0 ? -INFINITY : 0.0f;
  for (IDX_T v = v0; v < v1; ++v)
    for (IDX_T u = u0; u < u1; ++u) best = c_max(best, LOAD(from, v * width + u));
  STORE(AT(y), (plane * rows + row) * columns + column, best);
}
