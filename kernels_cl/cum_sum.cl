// CumSum: one work-item walks one line of n elements, `inner` apart. Work-item (inner, outer).
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T float
#define ACC_T float
#define HALF 0
#define EXCLUSIVE 0
#define REVERSE 0
#endif
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#if HALF
#define LOAD(at) vload_half((at), AT(x))
#define STORE(at, v) vstore_half((v), (at), AT(y))
#else
#define LOAD(at) AT(x)[at]
#define STORE(at, v) AT(y)[at] = (v)
#endif

__kernel void cum_sum(IN(DATA_T, x), OUT(DATA_T, y), const IDX_T n, const IDX_T inner) {
  const IDX_T r = get_global_id(0);
  if (r >= inner) return;
  const IDX_T base = (IDX_T)get_global_id(1) * n * inner + r;
  ACC_T sum = 0;
  for (IDX_T k = 0; k < n; ++k) {
    const IDX_T at = base + (REVERSE ? n - 1 - k : k) * inner;
    const ACC_T next = sum + LOAD(at);
    STORE(at, EXCLUSIVE ? sum : next);
    sum = next;
  }
}
