// Random numbers: y [n] is uniform in [a, a + b), or, with NORMAL 1, normal with mean a and
// standard deviation b.
//   y  written: storage DATA_T [n], computed in REAL_T
//   key_low, key_high  key of the generator (common/philox.clh)
//   LANES  numbers per work-item: 4 of float32, or 2 of float64, from the four words of one counter
//   BITS   random bits of a float32 number, at most 24
// One work-item per LANES elements.
#include "common/base.clh"
#include "common/math.clh"
#include "common/philox.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define REAL_T float
#define NORMAL 0
#define LANES 4
#define BITS 24
#endif
#if LANES == 2
#define WIDE(high, low) ((double)(((ulong)(high) << 21) | ((low) >> 11)) * 0x1p-53)
#define LOG(x) log(x)
#else
#define LOG(x) c_log(x)
#endif

__kernel void random(OUT(DATA_T, y), const IDX_T n, const uint key_low, const uint key_high,
                     const float a, const float b) {
  const IDX_T first = (IDX_T)get_global_id(0) * LANES;
  if (first >= n) return;
  const uint4 words = philox(get_global_id(0), key_low, key_high);
  REAL_T v[LANES];
#if LANES == 2
  v[0] = WIDE(words.x, words.y);
  v[1] = WIDE(words.z, words.w);
#else
  v[0] = UNIFORM(words.x, BITS);
  v[1] = UNIFORM(words.y, BITS);
  v[2] = UNIFORM(words.z, BITS);
  v[3] = UNIFORM(words.w, BITS);
#endif
#if NORMAL
  for (int i = 0; i < LANES; i += 2) {  // Box and Muller (1958)
    const REAL_T radius = sqrt(-2 * LOG(1 - v[i]));
    const REAL_T angle = 2 * v[i + 1];
    v[i] = radius * cospi(angle);
    v[i + 1] = radius * sinpi(angle);
  }
#endif
  for (int i = 0; i < LANES && first + i < n; ++i) STORE(AT(y), first + i, a + v[i] * b);
}
