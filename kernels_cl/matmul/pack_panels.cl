// Packs matrices in the layout in which gemm_cpu.cl reads its operand B.
//   x  read: DATA_T, element (k, n) of batch i0 * d1 + i1 at i0 * s0 + i1 * s1 + k * s_k + n * s_n
//      (strides in elements)
//   y  written: DATA_T [batch][panel][K][width], columns past N being zeros
//   width  columns per panel;  columns  N rounded up to whole panels;  DATA_T  type of the elements
// One work-group of one work-item per (panel, block of ROWS rows, batch).
#include "common/base.clh"
#ifndef ROWS
#define ROWS 64
#endif
#ifndef DATA_T
#define DATA_T float
#endif

__kernel SINGLE_ITEM
void pack_panels(OUT(DATA_T, y), IN(DATA_T, x), const IDX_T N, const IDX_T K, const IDX_T width,
                 const IDX_T columns, const IDX_T d1, const IDX_T s0, const IDX_T s1,
                 const IDX_T s_k, const IDX_T s_n) {
  const IDX_T panel = get_global_id(0), first = get_global_id(1) * ROWS, batch = get_global_id(2);
  const IDX_T i0 = batch / d1, i1 = batch - i0 * d1;
  const IDX_T end = min(K, first + ROWS), run = min(width, N - panel * width);
  __global const DATA_T *const from = AT(x) + i0 * s0 + i1 * s1 + panel * width * s_n;
  __global DATA_T *const to = AT(y) + batch * columns * K + panel * K * width;
  for (IDX_T k = first; k < end; ++k) {
    __global DATA_T *const line = to + k * width;
    __global const DATA_T *const row = from + k * s_k;
    if (s_n == 1)
      for (IDX_T j = 0; j < run; ++j) line[j] = row[j];
    else
      for (IDX_T j = 0; j < run; ++j) line[j] = row[j * s_n];
    for (IDX_T j = run; j < width; ++j) line[j] = 0;
  }
}
