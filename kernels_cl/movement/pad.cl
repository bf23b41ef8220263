// Pad whose border repeats elements of x (modes reflect, edge and wrap).
//   x  read: DATA_T; along axis a it has size k<a> and stride s<a> in elements, and starts b<a>
//      elements into y (negative: x is cropped)
//   y  written: DATA_T [d0, …, d5], contiguous. DATA_T is an unsigned integer type of the elements'
//      size.
//   MODE  1: reflects without repeating the edge; 2: repeats the edge; 3: wraps around
//   pad_mirror       (GPUs) one work-item per element of y
//   pad_mirror_rows  (CPUs) a work-group of one work-item writes parts of rows along axis 5
#include "common/base.clh"
#include "common/axes.clh"
#ifndef DATA_T
#define DATA_T uint
#define MODE 1
#endif

// Returns the index in 0..n-1 of the element of x that is copied to coordinate i of an axis of y,
// by MODE. i counts from the first element of x: it is negative in the border before x, and n or
// more in the border after it.
static inline IDX_T source(IDX_T i, const IDX_T n) {
#if MODE == 2
  return i < 0 ? 0 : i >= n ? n - 1 : i;
#elif MODE == 3
  i %= n;
  return i < 0 ? i + n : i;
#else
  // A single reflection suffices if the pad is narrower than x; this avoids a division.
  i = i < 0 ? -i : i;
  i = i < n ? i : n - 1 - (i - (n - 1));
  if (i >= 0 && i < n) return i;
  // Repeated reflection: y has more than 2 n elements along the axis.
  const IDX_T period = n > 1 ? 2 * (n - 1) : 1;
  i %= period;
  if (i < 0) i += period;
  return i < n ? i : period - i;
#endif
}

#if !CPU
__kernel void pad_mirror(IN(DATA_T, x), OUT(DATA_T, y), ELEMENT_PARAMS, PARAMS_6(k), PARAMS_6(s), PARAMS_6(b)) {
  FOR_EACH_ELEMENT {
    const IDX_T from = source(i0 - b0, k0) * s0 + source(i1 - b1, k1) * s1 +
                       source(i2 - b2, k2) * s2 + source(i3 - b3, k3) * s3 +
                       source(i4 - b4, k4) * s4 + source(i5 - b5, k5) * s5;
    AT(y)[CONTIGUOUS] = AT(x)[from];
  }
}

#else
// Writes positions `begin` to `end` (exclusive) of a row of y, `inner` elements each, from a row
// of x by MODE. The row `from` has `size` positions and starts at position `lead` of y.
static inline void mirror_places(__global DATA_T *to, __global const DATA_T *from, IDX_T begin,
                                 const IDX_T end, const IDX_T lead, const IDX_T size,
                                 const IDX_T inner) {
  for (; begin < end; ++begin) {
    const IDX_T at = source(begin - lead, size) * inner;
    for (IDX_T i = 0; i < inner; ++i) to[begin * inner + i] = from[at + i];
  }
}

// Pads x to y, by MODE, in rows along axis 5, whose positions have `inner` contiguous elements
// each. A work-item writes up to `width` positions of each of `height` rows, which are numbered in
// row-major order of axes 0 to 4.
__kernel SINGLE_ITEM
void pad_mirror_rows(IN(DATA_T, x), OUT(DATA_T, y), PARAMS_6(d), PARAMS_6(k), PARAMS_6(s), PARAMS_6(b),
                     const IDX_T inner, const IDX_T height, const IDX_T width) {
  const IDX_T dims[5] = {d0, d1, d2, d3, d4}, sizes[5] = {k0, k1, k2, k3, k4};
  const IDX_T steps[5] = {s0, s1, s2, s3, s4}, leads[5] = {b0, b1, b2, b3, b4};
  const IDX_T parts = (d5 + width - 1) / width, block = (IDX_T)get_group_id(0) / parts;
  const IDX_T begin = ((IDX_T)get_group_id(0) - block * parts) * width;
  const IDX_T end = min(begin + width, d5), first = block * height;
  const IDX_T inside = clamp(b5, begin, end), outside = clamp(b5 + k5, inside, end);
  IDX_T at[5], from[5], rest = first;
  __global const DATA_T *row_of_x = AT(x);
  for (int axis = 4; axis >= 0; --axis) {
    at[axis] = rest - rest / dims[axis] * dims[axis];
    rest /= dims[axis];
    from[axis] = source(at[axis] - leads[axis], sizes[axis]) * steps[axis];
    row_of_x += from[axis];
  }
  const IDX_T last = min(first + height, d0 * d1 * d2 * d3 * d4);
  for (IDX_T row = first; row < last; ++row) {
    __global DATA_T *const to = AT(y) + row * d5 * inner;
    mirror_places(to, row_of_x, begin, inside, b5, k5, inner);
    __global const DATA_T *const own = row_of_x - b5 * inner;
    for (IDX_T i = inside * inner; i < outside * inner; ++i) to[i] = own[i];
    mirror_places(to, row_of_x, outside, end, b5, k5, inner);
    for (int axis = 4; axis >= 0; --axis) {
      row_of_x -= from[axis];
      at[axis] = at[axis] + 1 < dims[axis] ? at[axis] + 1 : 0;
      from[axis] = source(at[axis] - leads[axis], sizes[axis]) * steps[axis];
      row_of_x += from[axis];
      if (at[axis]) break;
    }
  }
}
#endif
