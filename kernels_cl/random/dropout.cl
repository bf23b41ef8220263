// Dropout: y = x / (1 - ratio) where a random number is at least the ratio, else 0; y = x if
// training[0] is 0.
//   x  read, y  written: storage DATA_T [n], computed in REAL_T;  ratio  read: RATIO_T [1];
//      training  read: uint8 [1]
//   mask  written if MASK is 1: uint8 [n], 1 where x is kept
//   key_low, key_high  key of the random numbers (common/philox.clh)
//   RATIO_STORAGE  storage of ratio (common/storage.clh)
// One work-item per element.
#include "common/base.clh"
#include "common/philox.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define REAL_T float
#define RATIO_T float
#define RATIO_STORAGE plain
#define MASK 1
#endif
#if MASK
#define MASK_OUTPUT , OUT(uchar, mask)
#else
#define MASK_OUTPUT
#endif

__kernel void dropout(IN(DATA_T, x), IN(RATIO_T, ratio), IN(uchar, training),
                      OUT(DATA_T, y) MASK_OUTPUT, const IDX_T n, const uint key_low,
                      const uint key_high) {
  const IDX_T i = get_global_id(0);
  if (i >= n) return;
  const float p = LOAD_AS(RATIO_STORAGE, AT(ratio), 0);
  const int trains = AT(training)[0] != 0;
  const int keep = !trains || UNIFORM(random_word(i, key_low, key_high), 24) >= p;
  const REAL_T v = LOAD(AT(x), i);
  STORE(AT(y), i, keep ? (trains ? v / (1 - (REAL_T)p) : v) : (REAL_T)0);
#if MASK
  AT(mask)[i] = keep;
#endif
}
