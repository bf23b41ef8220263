// RoiAlign: each region of an image as a grid of bins, each the mean or the largest of samples
// between pixels. Work-item (bin column, bin row, region * channel).
//   MAX         the largest product of a pixel and its weight, as ONNX has it
//   HALF_PIXEL  pixels lie at halves
#include "common/base.clh"
#include "common/index.clh"
#include "common/math.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define INDEX_T long
#define MAX 0
#define HALF_PIXEL 1
#endif
#define FAR 1e9f

// Of `count` samples at start + (i + 0.5) * step, with a step of 0.5 to 1: the first that may lie on
// an image of `size`, and one past the last. A start that is no number, or far outside, has none.
static inline int2 samples_near(const float start, const float step, const float count,
                                const IDX_T size) {
  if (!(fabs(start) < FAR && count >= 1.0f && count < FAR)) return (int2)(0);
  return convert_int2(clamp((float2)((-1.0f - start) / step - 1.5f, (size - start) / step + 1.5f),
                            0.0f, count));
}

__kernel void roi_align(OUT(DATA_T, y), IN(DATA_T, x), IN(DATA_T, rois), IN(INDEX_T, batches),
                        OUT(long, status), const IDX_T images, const IDX_T channels,
                        const IDX_T height, const IDX_T width, const IDX_T rows,
                        const IDX_T columns, const IDX_T ratio, const float scale) {
  const IDX_T column = get_global_id(0), row = get_global_id(1), plane = get_global_id(2);
  if (column >= columns) return;
  const IDX_T region = plane / channels;
  const IDX_T channel = plane - region * channels;
  const IDX_T image = clrt_length((long)AT(batches)[region], images - 1, AT(status));
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
  const float down = ratio > 0 ? ratio : fmax(ceil(bin_high), 0.0f);
  const float across = ratio > 0 ? ratio : fmax(ceil(bin_wide), 0.0f);
  const float v_start = top + row * bin_high, u_start = left + column * bin_wide;
  int2 lines = (int2)(0, ratio), places = (int2)(0, ratio);
  if (!(ratio > 0)) {
    lines = samples_near(v_start, bin_high / down, down, height);
    places = samples_near(u_start, bin_wide / across, across, width);
  }
  __global const DATA_T *const from = AT(x) + (image * channels + channel) * height * width;
  const bool any = images > 0 && height > 0 && width > 0;
  float result = 0.0f;
#if MAX
  // Those that are not looked at are zeros.
  bool taken = lines.y - lines.x < down || places.y - places.x < across;
#endif
  for (int i = lines.x; i < lines.y; ++i)
    for (int j = places.x; j < places.y; ++j) {
      float v = v_start + (i + 0.5f) * bin_high / down;
      float u = u_start + (j + 0.5f) * bin_wide / across;
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
      result = taken ? c_max(result, sample) : sample;
      taken = true;
#else
      result += corners[0] + corners[1] + corners[2] + corners[3];
#endif
    }
#if !MAX
  result /= fmax(down * across, 1.0f);
#endif
  STORE(AT(y), (plane * rows + row) * columns + column, result);
}
