// GridSample: y[n, c, p] = x[n, c] interpolated at point grid[n, p]. Computed in float32.
//   x     read: DATA_T [N, channels, s0, s1, s2]
//   grid  read: GRID_T [N, positions, RANK]: coordinates in [-1, 1] along each axis, last axis
//         first
//   y     written: DATA_T [N, channels, positions]
//   grid_sample         (GPUs) one work-item per (p, n): all channels, which have the same source
//                      elements and weights
//   grid_sample_blocks  (CPUs) one work-group of one work-item per (block of BLOCK positions, n):
//                      it computes their source elements and weights once for all channels
//   RANK     2 or 3 spatial axes (s0 is 1 for 2)
//   TAPS     source elements along each axis: 1 nearest, 2 linear, 4 cubic
//   PADDING  values outside x: 0: zeros; 1: those of the edge; 2: reflected
//   CORNERS  1: -1 and 1 are the centres of the outermost elements; 0: their outer edges
//   GRID_STORAGE  storage of grid (common/storage.clh)
#include "common/base.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define GRID_T float
#define GRID_STORAGE plain
#define RANK 2
#define TAPS 2
#define PADDING 0
#define CORNERS 0
#endif
#ifndef BLOCK
#define BLOCK 64
#endif
#define LEAD (RANK == 3 ? TAPS : 1)

static inline float reflected(const float x, const float low, const float high) {
  const float range = high - low, out = x < low ? low - x : x - high;
  if (out <= 0.0f || range <= 0.0f) return out <= 0.0f ? x : low;
  const float turns = floor(out / range);
  const float rest = out - turns * range;
  const bool even = fmod(turns, 2.0f) == 0.0f;
  return (x < low) == even ? low + rest : high - rest;
}

// Finds the source elements of an interpolation at coordinate `where` (grid units, -1 to 1) along
// an axis of `size` elements: writes their indices (-1: none) to index[TAPS], their weights to
// weight[TAPS].
static void taps(const float where, const IDX_T size, IDX_T *index, float *weight) {
  const float low = CORNERS ? 0.0f : -0.5f, high = CORNERS ? size - 1.0f : size - 0.5f;
  float x = CORNERS ? (where + 1.0f) / 2.0f * (size - 1) : ((where + 1.0f) * size - 1.0f) / 2.0f;
#if TAPS == 1
  x = rint(x);
#endif
#if PADDING == 1
  // A cubic coordinate outside keeps its weights; it is clamped where all taps are the border.
  const float reach = TAPS == 4 ? 4.0f : 0.0f;
  if (x < low || x > high) x = clamp(x, -reach, size - 1.0f + reach);
#elif PADDING == 2
  x = reflected(x, low, high);
#endif
  // NaN and far coordinates have no elements.
  const bool near = fabs(x) < 1e9f;
  const float start = near ? floor(x) : 0.0f;
  const float t = x - start;
#if TAPS == 1
  weight[0] = 1.0f;
#elif TAPS == 2
  weight[0] = 1.0f - t;
  weight[1] = t;
#else
  const float A = -0.75f, u = 1.0f - t;
  weight[0] = ((A * (t + 1.0f) - 5.0f * A) * (t + 1.0f) + 8.0f * A) * (t + 1.0f) - 4.0f * A;
  weight[1] = ((A + 2.0f) * t - (A + 3.0f)) * t * t + 1.0f;
  weight[2] = ((A + 2.0f) * u - (A + 3.0f)) * u * u + 1.0f;
  weight[3] = ((A * (u + 1.0f) - 5.0f * A) * (u + 1.0f) + 8.0f * A) * (u + 1.0f) - 4.0f * A;
#endif
  for (int k = 0; k < TAPS; ++k) {
    IDX_T i = (IDX_T)start + k - (TAPS == 4 ? 1 : 0);
#if PADDING == 1
    i = clamp(i, (IDX_T)0, size - 1);
#elif PADDING == 2
    i = clamp((IDX_T)reflected(i, low, high), (IDX_T)0, size - 1);
#endif
    index[k] = near && i >= 0 && i < size ? i : -1;
  }
}

#define PARAMS                                                                              \
  OUT(DATA_T, y), IN(DATA_T, x), IN(GRID_T, grid), const IDX_T positions,                   \
      const IDX_T channels, const IDX_T s0, const IDX_T s1, const IDX_T s2
// Declares the elements and weights of position p along each axis.
#define FIND_TAPS(p)                                                                        \
  IDX_T i0[TAPS] = {0}, i1[TAPS], i2[TAPS];                                                 \
  float w0[TAPS] = {1.0f}, w1[TAPS], w2[TAPS];                                              \
  const IDX_T place = (n * positions + (p)) * RANK;                                         \
  taps(LOAD_AS(GRID_STORAGE, AT(grid), place), s2, i2, w2);                                 \
  taps(LOAD_AS(GRID_STORAGE, AT(grid), place + 1), s1, i1, w1);                             \
  if (RANK == 3) taps(LOAD_AS(GRID_STORAGE, AT(grid), place + RANK - 1), s0, i0, w0);
#define EACH_TAP                                                                            \
  for (int a = 0; a < LEAD; ++a)                                                            \
    for (int b = 0; b < TAPS; ++b)                                                          \
      for (int d = 0; d < TAPS; ++d)
#define INSIDE (i0[a] >= 0 && i1[b] >= 0 && i2[d] >= 0)
#define OFFSET ((i0[a] * s1 + i1[b]) * s2 + i2[d])

#if !CPU
__kernel void grid_sample(PARAMS) {
  const IDX_T p = get_global_id(0), n = get_global_id(1);
  if (p >= positions) return;
  FIND_TAPS(p)
  for (IDX_T c = 0; c < channels; ++c) {
    const IDX_T from = (n * channels + c) * s0 * s1 * s2;
    float sum = 0.0f;
    EACH_TAP if (INSIDE) sum += w0[a] * w1[b] * w2[d] * LOAD(AT(x), from + OFFSET);
    STORE(AT(y), (n * channels + c) * positions + p, sum);
  }
}

#else
#define ALL_TAPS (LEAD * TAPS * TAPS)
__kernel SINGLE_ITEM
void grid_sample_blocks(PARAMS) {
  const IDX_T first = get_group_id(0) * BLOCK, n = get_group_id(1), plane = s0 * s1 * s2;
  const IDX_T count = min(BLOCK, positions - first);
  IDX_T offsets[ALL_TAPS * BLOCK];
  float weights[ALL_TAPS * BLOCK];
  for (IDX_T p = 0; p < count; ++p) {
    FIND_TAPS(first + p)
    IDX_T at = p;
    EACH_TAP {
      offsets[at] = INSIDE ? OFFSET : -1;
      weights[at] = w0[a] * w1[b] * w2[d];
      at += BLOCK;
    }
  }
  for (IDX_T c = 0; c < channels; ++c) {
    float sums[BLOCK];
    for (IDX_T p = 0; p < count; ++p) sums[p] = 0.0f;
    __global const DATA_T *const from = AT(x) + (n * channels + c) * plane;
    for (int tap = 0; tap < ALL_TAPS && plane > 0; ++tap)
      for (IDX_T p = 0; p < count; ++p) {
        const IDX_T offset = offsets[tap * BLOCK + p];
        const float v = LOAD(from, offset < 0 ? 0 : offset);
        sums[p] += offset < 0 ? 0.0f : weights[tap * BLOCK + p] * v;
      }
    __global DATA_T *const to = AT(y) + (n * channels + c) * positions + first;
    for (IDX_T p = 0; p < count; ++p) STORE(to, p, sums[p]);
  }
}
#endif
