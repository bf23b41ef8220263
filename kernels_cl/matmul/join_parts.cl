// y = epilogue(the sum of `parts` products [M, N]), which are parts of one along K.
// INPUTS, READS, BODY, RESULT as in gemm_gpu.cl; there are no batch axes.
#define VW 1
#ifndef BODY
#define INPUTS
#define READS
#define BODY
#define RESULT v0
#endif
#include "common/base.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/operands.clh"

__kernel void join_parts(OUT(float, y), IN(float, sums), const IDX_T parts, const IDX_T M,
                         const IDX_T N INPUTS) {
  const IDX_T n = get_global_id(0), m = get_global_id(1), i0 = 0, i1 = 0;
  if (n >= N || m >= M) return;
  float sum = 0.0f;
  for (IDX_T part = 0; part < parts; ++part) sum += AT(sums)[(part * M + m) * N + n];
  const F v0 = sum;
  READS BODY
  AT(y)[m * N + n] = RESULT;
}
