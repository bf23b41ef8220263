// RoiAlign: divides each region of an image into rows x columns bins; y is the mean or maximum of
// each bin's samples, bilinearly interpolated. Computed in float32.
//   x        read: DATA_T [images, channels, height, width]
//   rois     read: DATA_T [regions, 4]: x1, y1, x2, y2, which times `scale` are pixels
//   batches  read: INDEX_T [regions]: the image of each region; one out of range is clamped and
//            reported in `status`
//   y        written: DATA_T [regions, channels, rows, columns]
//   roi_align       (GPUs) one work-item per (bin column, bin row, region * channels + channel)
//   roi_align_bins  (CPUs) one work-group of one work-item per (bin row, region): all channels,
//                   which have the same samples
//   ratio       samples per bin along each axis; 0: as many as the bin has pixels, rounded up
//   MAX         1: maximum of the products of pixels and weights, as ONNX defines it; 0: mean
//   HALF_PIXEL  1: pixel centres are at halves
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

// Returns the range (first, end), end exclusive, of those of the `count` samples of a bin along
// one axis that may be inside an image of `size` pixels; (0, 0) if `start` is NaN or far outside.
// Sample i is at start + (i + 0.5) * step, with a step of 0.5 to 1 pixels.
static inline int2 samples_near(const float start, const float step, const float count,
                                const IDX_T size) {
  if (!(fabs(start) < FAR && count >= 1.0f && count < FAR)) return (int2)(0);
  return convert_int2(clamp((float2)((-1.0f - start) / step - 1.5f, (size - start) / step + 1.5f),
                            0.0f, count));
}

// Finds the four pixels around point (v, u), row and column: their offsets in a plane at[4], and
// bilinear weights share[4]. Returns false if the point is outside of the image.
static inline bool find_corners(float v, float u, const IDX_T height, const IDX_T width, IDX_T *at,
                                float *share) {
  if (!(height > 0 && width > 0 && v >= -1.0f && v <= height && u >= -1.0f && u <= width))
    return false;
  v = clamp(v, 0.0f, height - 1.0f);
  u = clamp(u, 0.0f, width - 1.0f);
  // Clamped: float rounds sizes above 2^24, perhaps up.
  const IDX_T v0 = min((IDX_T)v, height - 1), u0 = min((IDX_T)u, width - 1);
  const IDX_T v1 = min(v0 + 1, height - 1), u1 = min(u0 + 1, width - 1);
  const float b = v - v0, a = u - u0;
  at[0] = v0 * width + u0;
  at[1] = v0 * width + u1;
  at[2] = v1 * width + u0;
  at[3] = v1 * width + u1;
  share[0] = (1.0f - b) * (1.0f - a);
  share[1] = (1.0f - b) * a;
  share[2] = b * (1.0f - a);
  share[3] = b * a;
  return true;
}

#define PARAMS                                                                                \
  OUT(DATA_T, y), IN(DATA_T, x), IN(DATA_T, rois), IN(INDEX_T, batches), OUT(long, status),   \
      const IDX_T images, const IDX_T channels, const IDX_T height, const IDX_T width,        \
      const IDX_T rows, const IDX_T columns, const IDX_T ratio, const float scale

// Declares the image of `region`, and the size and number of samples of its bins.
#define REGION                                                                                \
  const IDX_T image = clrt_length((long)AT(batches)[region], images - 1, AT(status));         \
  const float shift = HALF_PIXEL ? 0.5f : 0.0f, least = HALF_PIXEL ? -INFINITY : 1.0f;        \
  const float left = LOAD(AT(rois), region * 4) * scale - shift;                              \
  const float top = LOAD(AT(rois), region * 4 + 1) * scale - shift;                           \
  const float wide = fmax(LOAD(AT(rois), region * 4 + 2) * scale - shift - left, least);      \
  const float high = fmax(LOAD(AT(rois), region * 4 + 3) * scale - shift - top, least);       \
  const float bin_high = high / rows, bin_wide = wide / columns;                              \
  const float down = ratio > 0 ? ratio : fmax(ceil(bin_high), 0.0f);                          \
  const float across = ratio > 0 ? ratio : fmax(ceil(bin_wide), 0.0f);

// Declares the start of a bin's samples along both axes, the ranges `lines` and `places` of the
// samples that may be inside the image, and `zeros`: whether the bin has samples outside, which are
// 0.
#define BIN(row, column)                                                                      \
  const float v_start = top + (row) * bin_high, u_start = left + (column) * bin_wide;         \
  int2 lines = (int2)(0, ratio), places = (int2)(0, ratio);                                   \
  if (!(ratio > 0)) {                                                                         \
    lines = samples_near(v_start, bin_high / down, down, height);                             \
    places = samples_near(u_start, bin_wide / across, across, width);                         \
  }                                                                                           \
  /* Those that are not looked at are zeros. */                                               \
  const bool zeros = images <= 0 || lines.y - lines.x < down || places.y - places.x < across;
#define CORNERS(i, j)                                                                         \
  find_corners(v_start + ((i) + 0.5f) * bin_high / down,                                      \
               u_start + ((j) + 0.5f) * bin_wide / across, height, width, at, share)
#if MAX
#define NONE (-INFINITY)
#define JOIN(result, v) c_max(result, v)
#else
#define NONE 0.0f
#define JOIN(result, v) ((result) + (v))
#endif
#define RESULT(v, zeros) \
  (MAX ? (zeros) || v == NONE ? c_max(v, 0.0f) : v : v / fmax(down * across, 1.0f))

#if !CPU
__kernel void roi_align(PARAMS) {
  const IDX_T column = get_global_id(0), row = get_global_id(1), plane = get_global_id(2);
  if (column >= columns) return;
  const IDX_T region = plane / channels, channel = plane - region * channels;
  REGION
  BIN(row, column)
  __global const DATA_T *const from = AT(x) + (image * channels + channel) * height * width;
  float result = NONE;
  bool some = zeros;
  IDX_T at[4];
  float share[4];
  for (int i = lines.x; i < lines.y; ++i)
    for (int j = places.x; j < places.y; ++j)
      if (images > 0 && CORNERS(i, j)) {
        for (int k = 0; k < 4; ++k) result = JOIN(result, share[k] * LOAD(from, at[k]));
      } else {
        some = true;
      }
  STORE(AT(y), (plane * rows + row) * columns + column, RESULT(result, some));
}

#else
#define SAMPLES 64
#define CHANNELS 64
// Adds `count` samples to sums[c] for each of `channels` planes of x, `plane` elements apart from
// `from` on (with MAX: takes the maximum of the products). A sample is four pixels: offsets at[4]
// and weights share[4].
static inline void join_samples(float *sums, __global const DATA_T *from, const IDX_T channels,
                                const IDX_T plane, const IDX_T *at, const float *share,
                                const IDX_T count) {
  for (IDX_T c = 0; c < channels; ++c, from += plane) {
    // Four independent sums.
    float v0 = NONE, v1 = NONE, v2 = NONE, v3 = NONE;
    for (IDX_T k = 0; k < count * 4; k += 4) {
      v0 = JOIN(v0, share[k] * LOAD(from, at[k]));
      v1 = JOIN(v1, share[k + 1] * LOAD(from, at[k + 1]));
      v2 = JOIN(v2, share[k + 2] * LOAD(from, at[k + 2]));
      v3 = JOIN(v3, share[k + 3] * LOAD(from, at[k + 3]));
    }
    sums[c] = JOIN(sums[c], JOIN(JOIN(v0, v1), JOIN(v2, v3)));
  }
}

__kernel SINGLE_ITEM
void roi_align_bins(PARAMS) {
  const IDX_T row = get_group_id(0), region = get_group_id(1), plane = height * width;
  REGION
  IDX_T offsets[SAMPLES * 4];
  float shares[SAMPLES * 4], sums[CHANNELS];
  for (IDX_T column = 0; column < columns; ++column) {
    BIN(row, column)
    for (IDX_T first = 0; first < channels; first += CHANNELS) {
      __global const DATA_T *const from = AT(x) + (image * channels + first) * plane;
      const IDX_T n = min(CHANNELS, channels - first);
      for (IDX_T c = 0; c < n; ++c) sums[c] = NONE;
      bool some = zeros;
      IDX_T count = 0;
      for (int i = lines.x; i < lines.y; ++i)
        for (int j = places.x; j < places.y; ++j) {
          IDX_T *const at = offsets + count * 4;
          float *const share = shares + count * 4;
          if (images > 0 && CORNERS(i, j))
            ++count;
          else
            some = true;
          if (count < SAMPLES) continue;
          join_samples(sums, from, n, plane, offsets, shares, count);
          count = 0;
        }
      join_samples(sums, from, n, plane, offsets, shares, count);
      for (IDX_T c = 0; c < n; ++c) {
        const IDX_T to = ((region * channels + first + c) * rows + row) * columns + column;
        STORE(AT(y), to, RESULT(sums[c], some));
      }
    }
  }
}
#endif
