// ReverseSequence: time t of batch b comes from lens[b] - 1 - t while t < lens[b].
// Work-item (element of the rest, t, b).
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#endif

__kernel void reverse_sequence(IN(DATA_T, x), IN(INDEX_T, lens), OUT(DATA_T, y), OUT(int, status),
                               const IDX_T inner, const IDX_T time, const IDX_T batch,
                               const IDX_T time_step, const IDX_T batch_step) {
  const IDX_T r = get_global_id(0);
  const IDX_T t = get_global_id(1);
  const IDX_T b = get_global_id(2);
  if (r >= inner || t >= time || b >= batch) return;
  long length = (long)AT(lens)[b];
  if (length < 0 || length > time) {
    AT(status)[0] = 1;
    length = length < 0 ? 0 : time;
  }
  const IDX_T from = t < length ? (IDX_T)length - 1 - t : t;
  const IDX_T base = b * batch_step + r;
  AT(y)[base + t * time_step] = AT(x)[base + from * time_step];
}
