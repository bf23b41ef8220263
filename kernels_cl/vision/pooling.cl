// Windows over up to three axes of [N * C, s0, s1, s2]: the largest element, the mean, or a norm.
//   MAX       NaN is the largest; with INDICES: where it is in x, in row-major or column-major
//             (COLUMN_MAJOR) order
//   PADDED    a mean counts the positions in the padding, too
//   POWER, MEAN  what is added up, and what becomes of the sum: LpPool's norm
#include "common/base.clh"
#include "common/axes.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define VALUE_T float
#define LOWEST (-INFINITY)
#endif
#ifndef POWER
#define POWER(v) (v)
#define MEAN(total, count) ((total) / (VALUE_T)(count))
#endif
#ifndef MAX
#define MAX 1
#define INDICES 0
#define COLUMN_MAJOR 0
#define PADDED 0
#endif
#if INDICES
#define INDICES_OUTPUT , OUT(long, indices)
#else
#define INDICES_OUTPUT
#endif


// w: window sizes; b, e: padding before and after; dl: dilations; st: strides; o: output sizes.
__kernel void pool(OUT(DATA_T, y) INDICES_OUTPUT, IN(DATA_T, x), const IDX_T planes, THREE(s),
                   THREE(o), THREE(w), THREE(st), THREE(dl), THREE(b), THREE(e)) {
  const IDX_T p2 = get_global_id(0), p01 = get_global_id(1), plane = get_global_id(2);
  if (p2 >= o2 || p01 >= o0 * o1 || plane >= planes) return;
  const IDX_T p0 = p01 / o1;
  // No %, which LLVM would merge with / by a `freeze` that Oclgrind cannot run.
  const IDX_T f0 = p0 * st0 - b0, f1 = (p01 - p0 * o1) * st1 - b1, f2 = p2 * st2 - b2;
  const IDX_T from = plane * s0 * s1 * s2;
  IDX_T count = 0;
#if MAX
  VALUE_T best = LOWEST;
  IDX_T found = -1;
#else
  VALUE_T total = 0;
#endif
  for (IDX_T k0 = 0; k0 < w0; ++k0)
    for (IDX_T k1 = 0; k1 < w1; ++k1)
      for (IDX_T k2 = 0; k2 < w2; ++k2) {
        const IDX_T i0 = f0 + k0 * dl0, i1 = f1 + k1 * dl1, i2 = f2 + k2 * dl2;
        // A window may end past the padding where the output size was rounded up.
        if (PADDED && i0 < s0 + e0 && i1 < s1 + e1 && i2 < s2 + e2) ++count;
        if (i0 < 0 || i0 >= s0 || i1 < 0 || i1 >= s1 || i2 < 0 || i2 >= s2) continue;
        const VALUE_T v = LOAD(AT(x), from + (i0 * s1 + i1) * s2 + i2);
#if MAX
#if INDICES
        if (found < 0 || (best == best && !(v <= best)))
          found = COLUMN_MAJOR ? (i2 * s1 + i1) * s0 + i0 : (i0 * s1 + i1) * s2 + i2;
#endif
        best = best > v || best != best ? best : v;
#else
        if (!PADDED) ++count;
        total += POWER(v);
#endif
      }
  const IDX_T at = (plane * o0 * o1 + p01) * o2 + p2;
#if MAX
  STORE(AT(y), at, best);
#if INDICES
  AT(indices)[at] = found < 0 ? -1 : from + found;
#endif
#else
  STORE(AT(y), at, MEAN(total, count));
#endif
}
