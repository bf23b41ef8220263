// y[row] = row indices[row] of a matrix [N, K] in panels [panel][K][width], as gemm_cpu reads the
// transposed B. y [rows, K]; elements are of DATA_T, an unsigned integer type of their size.
// Indices out of range are clamped and reported in `status`. Work-group (block of ELEMS elements,
// row) of one work-item.
#include "common/base.clh"
#include "common/index.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T int
#define ELEMS 256
#endif

__kernel SINGLE_ITEM
void gather_panels(OUT(DATA_T, y), IN(DATA_T, panels), IN(INDEX_T, indices), OUT(long, status),
                   const IDX_T N, const IDX_T K, const IDX_T width) {
  const IDX_T first = get_global_id(0) * ELEMS, row = get_global_id(1);
  const IDX_T n = clrt_index((long)AT(indices)[row], N, AT(status)), end = min(K, first + ELEMS);
  __global const DATA_T *const from = AT(panels) + (size_t)(n / width) * K * width + n % width;
  __global DATA_T *const to = AT(y) + row * K;
  for (IDX_T k = first; k < end; ++k) to[k] = from[(size_t)k * width];
}
