// Writes a length outside 0..most to the status word: on behalf of kernels that such a check would
// slow down. Nothing is written if all lengths are in range.
//   lens    INDEX_T [n], read;  status  int64 [1] (common/index.clh)
// One work-item per length.
#include "common/base.clh"
#include "common/index.clh"
#ifndef INDEX_T
#define INDEX_T int
#endif

__kernel void check_lengths(IN(INDEX_T, lens), OUT(long, status), const IDX_T n, const IDX_T most) {
  const IDX_T i = get_global_id(0);
  if (i < n) clrt_length((long)AT(lens)[i], most, AT(status));
}
