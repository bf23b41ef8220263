// Products with weights of BITS bits in blocks along K, each with a scale and a zero point.
// Weights are packed in panels of PANEL columns: [panel][K * BITS / 8][PANEL] bytes, a byte holding
// 8 / BITS places of K, the first one low. Scales and zero points are float32 [block][columns], with
// zeros past column N.
//   matmul_nbits      y = A W + bias for few rows: T_MR rows by T_NV vectors of T_VW columns
//   dequantize_nbits  W in float, in panels of `width` columns: T_VW columns of a block of K
#ifndef T_MR
#define T_MR 4
#define T_NV 4
#define T_VW 8
#endif
#ifndef BITS
#define BITS 4
#define ZEROS 1
#define BIAS 1
#define GROUPS 0
#define DATA_T float
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/storage.clh"
#include "common/tile.clh"

#define PANEL 32
#define PER (8 / BITS)
#define MASK ((1 << BITS) - 1)
#if T_VW == 1
typedef uchar B_VECTOR;
typedef float F_ANY;
#define LANE(v, i) (v)
#define LEVELS(v, e) (F)(((int)(v) >> ((e) * BITS)) & MASK)
#else
#define JOINED_(a, b) a##b
#define JOINED(a, b) JOINED_(a, b)
typedef JOINED(uchar, T_VW) __attribute__((aligned(1))) B_VECTOR;
typedef JOINED(int, T_VW) WIDE;
typedef F __attribute__((aligned(4))) F_ANY;
#define LANE(v, i) (((const float *)&(v))[i])
// OpenCL's own conversions are calls on PoCL.
#if defined(__has_builtin)
#if __has_builtin(__builtin_convertvector)
#define CONVERT(v, T, NAME) __builtin_convertvector(v, T)
#endif
#endif
#ifndef CONVERT
#define CONVERT(v, T, NAME) JOINED(NAME, T_VW)(v)
#endif
#define LEVELS(v, e) CONVERT((CONVERT(v, WIDE, convert_int) >> ((e) * BITS)) & MASK, F, convert_float)
#endif

#if ZEROS
#define ZERO_INPUT , IN(float, zeros)
#define MIDDLE(at) (*(__global const F_ANY *)(AT(zeros) + (at)))
#else
#define ZERO_INPUT
#define MIDDLE(at) ((F)(1 << (BITS - 1)))
#endif
#if BIAS
#define BIAS_INPUT , IN(DATA_T, bias)
#define FIRST(n) LOAD(AT(bias), n)
#else
#define BIAS_INPUT
#define FIRST(n) 0.0f
#endif

#define ROW(i) const IDX_T row##i = (m0 + i < M ? m0 + i : M - 1) * K;
#define ZERO_SUM(i, j) F acc##i##_##j = (F)(0.0f);
#define ZERO_SUMS(i) VECTORS(ZERO_SUM, i)
#define ZERO_PART(i, j) F part##i##_##j = (F)(0.0f);
#define ZERO_PARTS(i) VECTORS(ZERO_PART, i)
#define LOAD_SCALE(i, j)                                                                      \
  const F scale##j = *(__global const F_ANY *)(AT(scales) + block * columns + n0 + j * T_VW); \
  const F middle##j = MIDDLE(block * columns + n0 + j * T_VW);
#define LOAD_BYTES(i, j) \
  const B_VECTOR bytes##j = *(__global const B_VECTOR *)(line + j * T_VW);
#define LEVEL(i, j) const F b##j = LEVELS(bytes##j, e) - middle##j;
#define MULTIPLY(i, j) part##i##_##j = a_k * b##j + part##i##_##j;
#define MULTIPLY_ROW(i)                             \
  {                                                 \
    const F a_k = (F)(LOAD(AT(a), row##i + k + e)); \
    VECTORS(MULTIPLY, i)                            \
  }
#define ADD_PART(i, j) acc##i##_##j = part##i##_##j * scale##j + acc##i##_##j;
#define ADD_PARTS(i) VECTORS(ADD_PART, i)
#define PUT(i, j)                                                                            \
  for (IDX_T lane = 0; lane < T_VW; ++lane) {                                                \
    const IDX_T n = n0 + j * T_VW + lane;                                                    \
    if (n < N && m0 + i < M) STORE(AT(y), (m0 + i) * N + n, LANE(acc##i##_##j, lane) + FIRST(n)); \
  }
#define PUT_ROW(i) VECTORS(PUT, i)
#define PLACES(count)                  \
  {                                    \
    VECTORS(LOAD_BYTES, 0)             \
    for (int e = 0; e < (count); ++e) { \
      VECTORS(LEVEL, 0)                \
      ROWS(MULTIPLY_ROW)               \
    }                                  \
    line += PANEL;                     \
  }

// Work-item (x, y): T_NV * T_VW columns, of which PANEL is a multiple; T_MR rows.
__kernel void matmul_nbits(OUT(DATA_T, y), IN(DATA_T, a), IN(uchar, b), IN(float, scales)
                           ZERO_INPUT BIAS_INPUT, const IDX_T M, const IDX_T N, const IDX_T K,
                           const IDX_T columns, const IDX_T block_size, const IDX_T lines) {
  const IDX_T n0 = get_global_id(0) * (T_NV * T_VW), m0 = get_global_id(1) * T_MR;
  if (n0 >= N || m0 >= M) return;
  __global const uchar *line = AT(b) + n0 / PANEL * PANEL * lines + n0 % PANEL;
  ROWS(ROW)
  ROWS(ZERO_SUMS)
  for (IDX_T block = 0; block * block_size < K; ++block) {
    IDX_T k = block * block_size;
    const IDX_T stop = i_min(k + block_size, K);
    VECTORS(LOAD_SCALE, 0)
    ROWS(ZERO_PARTS)
    for (; k + PER <= stop; k += PER) PLACES(PER)
    if (k < stop) PLACES(stop - k)
    ROWS(ADD_PARTS)
  }
  ROWS(PUT_ROW)
}

#if GROUPS
#define GROUP_INPUT , IN(int, groups)
#define GROUP(k) (AT(groups)[k])
#else
#define GROUP_INPUT
#define GROUP(k) block
#endif

// Work-item (x, y): T_VW columns, of which `width` is a multiple; the places of K in a block.
__kernel void dequantize_nbits(OUT(DATA_T, y), IN(uchar, b), IN(float, scales) ZERO_INPUT GROUP_INPUT,
                               const IDX_T K, const IDX_T columns, const IDX_T block_size,
                               const IDX_T lines, const IDX_T width, const IDX_T wanted) {
  const IDX_T n0 = get_global_id(0) * T_VW, block = get_global_id(1);
  if (n0 >= wanted) return;
  const IDX_T panel = n0 / width;
  IDX_T to = panel * K * width + block * block_size * width + (n0 - panel * width);
  const IDX_T stop = i_min((block + 1) * block_size, K);
  for (IDX_T k = block * block_size; k < stop; ++k, to += width) {
    F v = (F)(0.0f);
    if (n0 < columns) {
      const IDX_T at = GROUP(k) * columns + n0;
      const B_VECTOR bytes = *(__global const B_VECTOR *)(
          AT(b) + (n0 / PANEL * lines + k / PER) * PANEL + n0 % PANEL);
      v = (LEVELS(bytes, k % PER) - MIDDLE(at)) * *(__global const F_ANY *)(AT(scales) + at);
    }
#if T_VW == 1
    STORE(AT(y), to, v);
#else
    *(__global F_ANY *)(AT(y) + to) = v;
#endif
  }
}
