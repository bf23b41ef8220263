// Copies a strided view into a strided place: Transpose, Slice, Split, Concat, Expand, Tile, Pad.
#include "common/base.clh"
#include "common/axes.clh"
#ifndef DATA_T
#define DATA_T uint
#endif

__kernel void copy_strided(IN(DATA_T, src), OUT(DATA_T, dst), AXES(d), AXES(s), AXES(t)) {
  PLACE
  if (outside) return;
  AT(dst)[STRIDED(t)] = AT(src)[STRIDED(s)];
}
