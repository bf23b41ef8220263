// Rotary position embedding: y = x cos + rotate(x) sin, where rotate swaps the halves of a head's
// S_D elements and negates the half that is then first.
//   x               read: DATA_T, S_D contiguous elements per head; strides in elements x_batch,
//                   x_place (from a position to the next) and x_head
//   y               written: DATA_T [batch, positions, heads, S_D], contiguous; `places` is the
//                   number of positions
//   cosines, sines  read: DATA_T, S_D elements per position; strides table_batch and table_place, 0
//                   if batches or positions share a row
//   rotary_cpu  (T_VW > 1) float32; one work-group of one work-item per (position, batch), in
//               dimensions 1 and 2: all heads of the position, in vectors of T_VW
//   rotary_any  (T_VW 1) one work-item per (head * S_D / 2 + d, position, batch): elements d and d
//               + S_D / 2 of a head
#ifndef S_D
#define S_D 16
#define DATA_T float
#define STORAGE plain
#define T_VW 8
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/storage.clh"

#define HALF (S_D / 2)
#define PARAMETERS                                                                                \
  OUT(DATA_T, y), IN(DATA_T, x), IN(DATA_T, cosines), IN(DATA_T, sines), const IDX_T places,      \
      const IDX_T heads, const IDX_T x_batch, const IDX_T x_head, const IDX_T x_place,            \
      const IDX_T table_batch, const IDX_T table_place
#define PLACE                                                       \
  const IDX_T place = get_global_id(1), batch = get_global_id(2);   \
  const IDX_T table = batch * table_batch + place * table_place;    \
  const IDX_T row = batch * x_batch + place * x_place;              \
  const IDX_T to = (batch * places + place) * heads * S_D;

#if T_VW > 1
__kernel SINGLE_ITEM void rotary_cpu(PARAMETERS) {
  PLACE
  __global const float *const c = AT(cosines) + table, *const s = AT(sines) + table;
  for (IDX_T head = 0; head < heads; ++head) {
    __global const float *const from = AT(x) + row + head * x_head;
    __global float *const out = AT(y) + to + head * S_D;
    int d = 0;
    for (; d + VW <= HALF; d += VW) {
      const F a = LOAD_F(from + d), b = LOAD_F(from + HALF + d);
      STORE_F(out + d, a * LOAD_F(c + d) - b * LOAD_F(s + d));
      STORE_F(out + HALF + d, b * LOAD_F(c + HALF + d) + a * LOAD_F(s + HALF + d));
    }
    for (; d < HALF; ++d) {
      const float a = from[d], b = from[HALF + d];
      out[d] = a * c[d] - b * s[d];
      out[HALF + d] = b * c[HALF + d] + a * s[HALF + d];
    }
  }
}
#else
__kernel void rotary_any(PARAMETERS) {
  const IDX_T head = (IDX_T)get_global_id(0) / HALF, d = (IDX_T)get_global_id(0) % HALF;
  if (head >= heads) return;
  PLACE
  const IDX_T from = row + head * x_head + d, out = to + head * S_D + d, at = table + d;
  const float a = LOAD(AT(x), from), b = LOAD(AT(x), from + HALF);
  STORE(AT(y), out, a * LOAD(AT(cosines), at) - b * LOAD(AT(sines), at));
  STORE(AT(y), out + HALF, b * LOAD(AT(cosines), at + HALF) + a * LOAD(AT(sines), at + HALF));
}
#endif
