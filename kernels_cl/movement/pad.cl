// Pad with elements of x. Kept axes k0..k5 start b0..b5 elements into the output, and are walked
// in x by strides s0..s5. MODE 1 reflects without repeating the edge, 2 repeats the edge, 3 wraps.
// d are the dims of y.
#include "common/base.clh"
#include "common/axes.clh"
#ifndef DATA_T
#define DATA_T uint
#define MODE 1
#endif

static inline IDX_T source(IDX_T i, const IDX_T n) {
#if MODE == 2
  return i < 0 ? 0 : i >= n ? n - 1 : i;
#elif MODE == 3
  i %= n;
  return i < 0 ? i + n : i;
#else
  // Once is enough where the pad is narrower than x, and spares a division.
  i = i < 0 ? -i : i;
  i = i < n ? i : 2 * (n - 1) - i;
  if (i >= 0 && i < n) return i;
  const IDX_T period = n > 1 ? 2 * (n - 1) : 1;
  i %= period;
  if (i < 0) i += period;
  return i < n ? i : period - i;
#endif
}

__kernel void pad_mirror(IN(DATA_T, x), OUT(DATA_T, y), PLACES, AXES(k), AXES(s), AXES(b)) {
  EACH_PLACE {
    const IDX_T from = source(i0 - b0, k0) * s0 + source(i1 - b1, k1) * s1 +
                       source(i2 - b2, k2) * s2 + source(i3 - b3, k3) * s3 +
                       source(i4 - b4, k4) * s4 + source(i5 - b5, k5) * s5;
    AT(y)[CONTIGUOUS] = AT(x)[from];
  }
}
