// ReverseSequence: time t of batch b comes from lens[b] - 1 - t while t < lens[b].
// Work-item (element of the rest, t, b).
#include "common/base.clh"
#include "common/index.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#endif

__kernel void reverse_sequence(IN(DATA_T, x), IN(INDEX_T, lens), OUT(DATA_T, y), OUT(long, status),
                               const IDX_T inner, const IDX_T time, const IDX_T batch,
                               const IDX_T time_step, const IDX_T batch_step) {
  const IDX_T r = get_global_id(0);
  const IDX_T t = get_global_id(1);
  const IDX_T b = get_global_id(2);
  if (r >= inner || t >= time || b >= batch) return;
  const IDX_T length = clrt_length((long)AT(lens)[b], time, AT(status));
  const IDX_T from = t < length ? length - 1 - t : t;
  const IDX_T base = b * batch_step + r;
  AT(y)[base + t * time_step] = AT(x)[base + from * time_step];
}
