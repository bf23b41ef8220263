// Copies a strided view into a strided place: Transpose, Slice, Split, Concat, Expand, Tile, Pad.
// Work-item (x, y, z): the last axis, the one before it, and the product of the first four.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T uint
#endif

__kernel void copy_strided(IN(DATA_T, src), OUT(DATA_T, dst),
                           const IDX_T d0, const IDX_T d1, const IDX_T d2, const IDX_T d3,
                           const IDX_T d4, const IDX_T d5,
                           const IDX_T s0, const IDX_T s1, const IDX_T s2, const IDX_T s3,
                           const IDX_T s4, const IDX_T s5,
                           const IDX_T t0, const IDX_T t1, const IDX_T t2, const IDX_T t3,
                           const IDX_T t4, const IDX_T t5) {
  const IDX_T i5 = get_global_id(0);
  const IDX_T i4 = get_global_id(1);
  const IDX_T rest = get_global_id(2);
  if (i5 >= d5 || i4 >= d4) return;
  const IDX_T i012 = rest / d3;
  const IDX_T i3 = rest - i012 * d3;
  const IDX_T i01 = i012 / d2;
  const IDX_T i2 = i012 - i01 * d2;
  const IDX_T i0 = i01 / d1;
  const IDX_T i1 = i01 - i0 * d1;
  AT(dst)[i0 * t0 + i1 * t1 + i2 * t2 + i3 * t3 + i4 * t4 + i5 * t5] =
      AT(src)[i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3 + i4 * s4 + i5 * s5];
}
