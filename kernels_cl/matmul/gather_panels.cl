// Gather of rows of a matrix [N, K] that is packed in panels, as gemm_cpu reads it as its
// transposed operand B: y[row] = row indices[row].
//   panels   read: DATA_T [panel][K][width]: row n of the matrix is column n % width of panel n /
//            width
//   indices  read: INDEX_T [rows]; one out of range is clamped and reported in `status`
//            (common/index.clh)
//   y        written: DATA_T [rows, K];  DATA_T  an unsigned integer type of the elements' size
// One work-group of one work-item per (block of ELEMS elements, row).
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
