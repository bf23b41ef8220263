// ReverseSequence: element t of sequence b is read from lens[b] - 1 - t while t < lens[b], else
// from t.
//   x  read, y  written: DATA_T, of equal strides in elements: time_step, batch_step, and 1 within
//      the `inner` elements of a step. DATA_T is an unsigned integer type of the elements' size.
//   lens  read: INDEX_T [batch]; one outside 0..time is clamped and reported in `status`
//   reverse_sequence       (GPUs) one work-item per (element of the step, t, b)
//   reverse_sequence_rows  (CPUs) one work-group of one work-item per (block of `height` steps, b)
#include "common/base.clh"
#include "common/axes.clh"
#include "common/index.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#endif

#if !CPU
__kernel void reverse_sequence(IN(DATA_T, x), IN(INDEX_T, lens), OUT(DATA_T, y), OUT(long, status),
                               const IDX_T inner, const IDX_T time, const IDX_T batch,
                               const IDX_T time_step, const IDX_T batch_step) {
  GLOBAL_XYZ(r, t, b, inner, time)
  if (r >= inner || t >= time || (uint)b >= (uint)batch) return;
  const IDX_T length = clrt_length((long)AT(lens)[b], time, AT(status));
  const IDX_T from = t < length ? length - 1 - t : t;
  const IDX_T base = b * batch_step + r;
  AT(y)[base + t * time_step] = AT(x)[base + from * time_step];
}

#else
__kernel SINGLE_ITEM
void reverse_sequence_rows(IN(DATA_T, x), IN(INDEX_T, lens), OUT(DATA_T, y), OUT(long, status),
                           const IDX_T inner, const IDX_T time, const IDX_T batch,
                           const IDX_T time_step, const IDX_T batch_step, const IDX_T height) {
  const IDX_T b = get_group_id(1), begin = get_group_id(0) * height;
  const IDX_T end = min(begin + height, time), base = b * batch_step;
  const IDX_T length = clrt_length((long)AT(lens)[b], time, AT(status));
  for (IDX_T t = begin; t < end; ++t) {
    __global const DATA_T *const from = AT(x) + base + (t < length ? length - 1 - t : t) * time_step;
    __global DATA_T *const to = AT(y) + base + t * time_step;
    for (IDX_T i = 0; i < inner; ++i) to[i] = from[i];
  }
}
#endif
