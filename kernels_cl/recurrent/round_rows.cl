// y = x rounded to the 256 levels between the minimum and maximum of x and 0, as dequantized
// float32 (common/dynamic_levels.clh), for a recurrent op with 8-bit weights.
//   x  read, y  written: float32; each work-group of T_ITEMS work-items has n adjacent elements,
//      with a common range
//   F_LENS    1: x is a batch of B sequences of the lengths lens LENS_T [B], at most T
//   S_INPUTS  with F_LENS. 1: x is [T, B, input], `width` elements per step of all B; only the
//             steps of the longest sequence count for the range. 0: x is states [D, B, width]; only
//             those of sequences of at least `step` steps count
#ifndef T_ITEMS
#define T_ITEMS 64
#define F_LENS 1
#define S_INPUTS 0
#define LENS_T int
#endif
#define VW 1
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/dynamic_levels.clh"
#include "common/group.clh"
#if !F_LENS
#define LENS_PARAM
#define LIVE(i) 1
#else
#define LENS_PARAM , IN(LENS_T, lens), const IDX_T T, const IDX_T B, const IDX_T width, const IDX_T step
#if S_INPUTS
#define LIVE(i) ((i) < live)
#else
#define LIVE(i) (AT(lens)[(first + (i)) / width % B] >= step)
#endif
#endif

__kernel GROUP
void round_rows(OUT(float, y), IN(float, x), const IDX_T n LENS_PARAM) {
  __local float parts[T_ITEMS];
  const IDX_T lane = get_local_id(0);
  const IDX_T first = get_group_id(0) * n;
#if F_LENS && S_INPUTS
  LONGEST(longest, AT(lens), B, T)
  const IDX_T live = longest * width;
#endif
  float low = 0.0f, high = 0.0f;
  for (IDX_T i = lane; i < n; i += T_ITEMS) {
    const float v = LIVE(i) ? AT(x)[first + i] : 0.0f;
    low = LESSER(v, low);
    high = LARGER(v, high);
  }
  GROUP_FOLD(low, LESSER, parts, T_ITEMS)
  GROUP_FOLD(high, LARGER, parts, T_ITEMS)
  const float2 range = (float2)(low, high);
  const float scale = scale_of_range(range), zero = zero_of_range(range, scale);
  for (IDX_T i = lane; i < n; i += T_ITEMS)
    AT(y)[first + i] = (dynamic_levels(AT(x)[first + i], scale, zero) - zero) * scale;
}
