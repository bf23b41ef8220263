// Reports lengths lens [n] outside 0..most in the status word, for kernels that the check would
// slow down. Work-item: one length.
#include "common/base.clh"
#include "common/index.clh"
#ifndef INDEX_T
#define INDEX_T int
#endif

__kernel void check_lengths(IN(INDEX_T, lens), OUT(long, status), const IDX_T n, const IDX_T most) {
  const IDX_T i = get_global_id(0);
  if (i < n) clrt_length((long)AT(lens)[i], most, AT(status));
}
