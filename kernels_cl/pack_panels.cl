// Packs a stack of matrices [batch][K][N] with any strides as [batch][panel][K][width], with zeros
// past column N: the form in which gemm_cpu reads B.
// Work-item (x, y, z): column of the padded matrix, row, batch.
#include "common/base.clh"

__kernel void pack_panels(OUT(float, y), IN(float, x), const IDX_T N, const IDX_T K,
                          const IDX_T width, const IDX_T columns, const IDX_T batches,
                          const IDX_T d1, const IDX_T s0, const IDX_T s1, const IDX_T s_k,
                          const IDX_T s_n) {
  const IDX_T n = get_global_id(0);
  const IDX_T k = get_global_id(1);
  const IDX_T batch = get_global_id(2);
  if (n >= columns || k >= K || batch >= batches) return;
  const IDX_T i0 = batch / d1;
  const IDX_T i1 = batch % d1;
  const IDX_T panel = n / width;
  AT(y)[batch * columns * K + (panel * K + k) * width + (n - panel * width)] =
      n < N ? AT(x)[i0 * s0 + i1 * s1 + k * s_k + n * s_n] : 0.0f;
}
