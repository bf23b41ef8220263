// CumSum and CumProd: one work-item walks one line of n elements, `inner` apart.
// Work-item (inner, outer).
#include "common/base.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define ACC_T float
#define EXCLUSIVE 0
#define REVERSE 0
#define START 0
#define JOIN(a, b) ((a) + (b))
#endif
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

__kernel void cum_sum(IN(DATA_T, x), OUT(DATA_T, y), const IDX_T n, const IDX_T inner) {
  const IDX_T r = get_global_id(0);
  if (r >= inner) return;
  const IDX_T base = (IDX_T)get_global_id(1) * n * inner + r;
  ACC_T sum = START;
  for (IDX_T k = 0; k < n; ++k) {
    const IDX_T at = base + (REVERSE ? n - 1 - k : k) * inner;
    const ACC_T next = JOIN(sum, LOAD(AT(x), at));
    STORE(AT(y), at, EXCLUSIVE ? sum : next);
    sum = next;
  }
}
