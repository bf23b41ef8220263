// y = epilogue(A B) for any dtype and any strides on any device. The two batch axes have indices i0
// and i1 (below d1); batch = i0 * d1 + i1. Strides are in elements.
//   a  read: DATA_T, element (m, k) at i0 * a_s0 + i1 * a_s1 + m * a_row + k * a_k
//   b  read: B_T, element (k, n) at i0 * b_s0 + i1 * b_s1 + k * b_k + n * b_n; with BITS
//      block-quantized, as one panel (common/blocks.clh)
//   y  written: Y_T [batch, M, N]
// One work-item per (n, m, batch) computes one element of y.
//   A_STORAGE, B_STORAGE, Y_STORAGE  storages of a, b and y (common/storage.clh), whose types are
//                      DATA_T, B_T and Y_T
//   ACC_T  type of the sums;  OUT_T  type to which the result is converted before it is stored
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual)
//               applied to each sum, described in matmul/gemm_cpu.cl
#ifndef EPILOGUE_BODY
#define DATA_T float
#define ACC_T float
#define OUT_T float
#define Y_T float
#define EPILOGUE_PARAMS , IN(float, x1), const IDX_T x1_s0, const IDX_T x1_s1, const IDX_T x1_sm
#define EPILOGUE_LOADS const F v1 = COLUMNS(1, plain);
#define EPILOGUE_BODY const F v2 = v0 + v1;
#define EPILOGUE_RESULT v2
#endif
#ifndef B_T
#define B_T DATA_T
#define A_STORAGE plain
#define B_STORAGE plain
#define Y_STORAGE plain
#endif
#define VW 1
#include "common/base.clh"
#include "common/blocks.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/operands.clh"

#ifdef BITS
#define ELEMENT_B(k) block_element(AT(b), AT(blocks), k, n, N, block_size)
#else
#define ELEMENT_B(k) LOAD_AS(B_STORAGE, AT(b), at_b + (k) * b_k)
#endif

__kernel void gemm_any(OUT(Y_T, y), IN(DATA_T, a), IN(B_T, b) BLOCK_INPUTS,
                       const IDX_T M, const IDX_T N, const IDX_T K, const IDX_T d1, const IDX_T a_s0, const IDX_T a_s1,
                       const IDX_T a_row, const IDX_T a_k, const IDX_T b_s0, const IDX_T b_s1,
                       const IDX_T b_k, const IDX_T b_n EPILOGUE_PARAMS) {
  const IDX_T n = get_global_id(0);
  const IDX_T m = get_global_id(1);
  const IDX_T batch = get_global_id(2);
  if (n >= N || m >= M) return;
  const IDX_T i0 = batch / d1;
  const IDX_T i1 = batch % d1;
  const IDX_T at_a = i0 * a_s0 + i1 * a_s1 + m * a_row;
  const IDX_T at_b = i0 * b_s0 + i1 * b_s1 + n * b_n;
  ACC_T v0 = (ACC_T)0;
  for (IDX_T k = 0; k < K; ++k) {
    const ACC_T left = (ACC_T)LOAD_AS(A_STORAGE, AT(a), at_a + k * a_k);
    v0 += left * (ACC_T)ELEMENT_B(k);
  }
  EPILOGUE_LOADS EPILOGUE_BODY
  STORE_AS(Y_STORAGE, AT(y), (batch * M + m) * N + n, (OUT_T)(EPILOGUE_RESULT));
}
