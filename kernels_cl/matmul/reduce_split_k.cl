// y = epilogue(sum of partial products of a matrix product that is split over K).
//   sums  read: float32 [parts, batches, M, N], one partial product per part
//   y     written: float32 [batches, M, N]
// One work-item per (n, m, batch) computes one element of y; batch = i0 * d1 + i1 for the
// epilogue's batch indices.
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual)
//               applied to each sum, described in matmul/gemm_cpu.cl
#define VW 1
#ifndef EPILOGUE_BODY
#define EPILOGUE_PARAMS
#define EPILOGUE_LOADS
#define EPILOGUE_BODY
#define EPILOGUE_RESULT v0
#endif
#include "common/base.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/operands.clh"

__kernel void join_parts(OUT(float, y), IN(float, sums), const IDX_T parts, const IDX_T M,
                         const IDX_T N, const IDX_T d1, const IDX_T batches EPILOGUE_PARAMS) {
  const IDX_T n = get_global_id(0), m = get_global_id(1), batch = get_global_id(2);
  if (n >= N || m >= M) return;
  const IDX_T i0 = batch / d1, i1 = batch % d1, at = (batch * M + m) * N + n;
  float sum = 0.0f;
  for (IDX_T part = 0; part < parts; ++part) sum += AT(sums)[part * batches * M * N + at];
  const F v0 = sum;
  EPILOGUE_LOADS EPILOGUE_BODY
  AT(y)[at] = EPILOGUE_RESULT;
}
