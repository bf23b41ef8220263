// TensorScatter (an update of a KV cache): writes update [outer, length, inner] into y [outer,
// size, inner] from position `start` of the second axis on; other elements of y stay.
//   update  DATA_T, read;  y  DATA_T, written. DATA_T is an unsigned integer type of the elements'
//           size
//   F_INDICES  1: start is indices[o / middle] for outer index o; 0: start is 0
//   CIRCULAR   1: positions wrap around at `size`; 0: a start outside 0..size - length is clamped
//              and reported in `status`
//   INDEX_T    type of the indices
// One work-item per (inner, position in the update, outer); it copies every get_global_size(0)-th
// inner element.
#include "common/base.clh"
#include "common/index.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#define CIRCULAR 0
#define F_INDICES 1
#endif
#if F_INDICES
#define INDICES , IN(INDEX_T, indices), OUT(long, status)
#else
#define INDICES
#endif

__kernel void tensor_scatter(IN(DATA_T, update), OUT(DATA_T, y) INDICES, const IDX_T inner,
                             const IDX_T size, const IDX_T length, const IDX_T middle) {
  const IDX_T s = get_global_id(1);
  const IDX_T outer = get_global_id(2);
  IDX_T place = s;
#if F_INDICES
  const long start = AT(indices)[outer / middle];
#if CIRCULAR
  place += (IDX_T)(start % size);
  if (place < 0) place += size;
  if (place >= size) place -= size;
#else
  place += clrt_length(start, size - length, AT(status));
#endif
#endif
  __global DATA_T *to = AT(y) + (outer * size + place) * inner;
  __global const DATA_T *from = AT(update) + (outer * length + s) * inner;
  for (IDX_T r = get_global_id(0); r < inner; r += get_global_size(0)) to[r] = from[r];
}
