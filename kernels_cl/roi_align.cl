// RoiAlign: each region of an image as a grid of bins, each the mean or the largest of samples
// between pixels. Work-item (bin column, bin row, region * channel).
//   MAX         the largest product of a pixel and its weight, as ONNX has it
//   HALF_PIXEL  pixels lie at halves
#include "common/base.clh"
#include "common/math.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define INDEX_T long
#define MAX 0
#define HALF_PIXEL 1
#endif

__kernel void roi_align(OUT(DATA_T, y), IN(DATA_T, x), IN(DATA_T, rois), IN(INDEX_T, batches),
                        OUT(int, status), const IDX_T images, const IDX_T channels,
                        const IDX_T height, const IDX_T width, const IDX_T rows,
                        const IDX_T columns, const IDX_T ratio, const float scale) {
  const IDX_T column = get_global_id(0), row = get_global_id(1), plane = get_global_id(2);
  if (column >= columns) return;
  const IDX_T region = plane / channels;
  const IDX_T channel = plane - region * channels;
  long image = AT(batches)[region];
  if (image < 0 || image >= images) {
    AT(status)[0] = 1;
    image = 0;
  }
  const float shift = HALF_PIXEL ? 0.5f : 0.0f;
  const float left = LOAD(AT(rois), region * 4) * scale - shift;
  const float top = LOAD(AT(rois), region * 4 + 1) * scale - shift;
  float wide = LOAD(AT(rois), region * 4 + 2) * scale - shift - left;
  float high = LOAD(AT(rois), region * 4 + 3) * scale - shift - top;
  if (!HALF_PIXEL) {
    wide = fmax(wide, 1.0f);
    high = fmax(high, 1.0f);
  }
  const float bin_high = high / rows, bin_wide = wide / columns;
  const IDX_T down = ratio > 0 ? ratio : (IDX_T)ceil(bin_high);
  const IDX_T across = ratio > 0 ? ratio : (IDX_T)ceil(bin_wide);
  __global const DATA_T *const from = AT(x) + (image * channels + channel) * height * width;
  const bool any = images > 0 && height > 0 && width > 0;
  float result = 0.0f;
  for (IDX_T i = 0; i < down; ++i)
    for (IDX_T j = 0; j < across; ++j) {
      float v = top + row * bin_high + (i + 0.5f) * bin_high / down;
      float u = left + column * bin_wide + (j + 0.5f) * bin_wide / across;
      float corners[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (any && v >= -1.0f && v <= height && u >= -1.0f && u <= width) {
        v = clamp(v, 0.0f, height - 1.0f);
        u = clamp(u, 0.0f, width - 1.0f);
        const IDX_T v0 = (IDX_T)v, u0 = (IDX_T)u;
        const IDX_T v1 = min(v0 + 1, height - 1), u1 = min(u0 + 1, width - 1);
        const float b = v - v0, a = u - u0;
        corners[0] = (1.0f - b) * (1.0f - a) * LOAD(from, v0 * width + u0);
        corners[1] = (1.0f - b) * a * LOAD(from, v0 * width + u1);
        corners[2] = b * (1.0f - a) * LOAD(from, v1 * width + u0);
        corners[3] = b * a * LOAD(from, v1 * width + u1);
      }
#if MAX
      const float sample = c_max(c_max(corners[0], corners[1]), c_max(corners[2], corners[3]));
      result = i == 0 && j == 0 ? sample : c_max(result, sample);
#else
      result += corners[0] + corners[1] + corners[2] + corners[3];
#endif
    }
#if !MAX
  result /= max(down * across, (IDX_T)1);
#endif
  STORE(AT(y), (plane * rows + row) * columns + column, result);
}
