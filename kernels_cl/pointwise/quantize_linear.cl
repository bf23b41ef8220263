// QuantizeLinear and DequantizeLinear.
//   x, y  DATA_T and OUT_T [outer, n, inner]; x is read, y written
//   scale, zero  read: SCALE_T, ZERO_T: one element per block of `block` elements along n; for
//                element (o, i, r) at o * s_outer + i / block * s_n + r * s_inner. Strides of 0
//                broadcast along an axis
//   quantize_linear    y = x / scale, rounded to storage QUOTIENT, then to nearest even, plus zero
//                      point, limited to LOW..HIGH. TO_FLOAT 1: y is a low-bit float, without zero
//                      point, limited to -HIGH..HIGH if SATURATE
//   dequantize_linear  y = (x - zero point) * scale; with SCALED 0 y = x - zero point
//   UNIFORM   1: there is one scale; outer and inner are 1;  LAST  1: inner is 1
//   BLOCKED   1: blocks have more than one element;  CENTERED  1: there is a zero point
//   ELEMS     elements per work-item along the first dimension of the global size
//   DATA, SCALE, ZERO, STORED  storages of x, scale, zero and y (common/storage.clh)
//   VALUE_T, OUT_VALUE_T  types in which x and y are computed
// One work-item per ELEMS elements along the first of (r, i, o); with LAST of (i, o); with UNIFORM
// of (i). So the only division is by the block size.
#include "common/base.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define VALUE_T float
#define DATA plain
#define SCALE_T float
#define SCALE plain
#define ZERO_T uchar
#define ZERO plain
#define OUT_T uchar
#define OUT_VALUE_T int
#define STORED plain
#define SCALED 1
#define UNIFORM 0
#define LAST 0
#define BLOCKED 1
#define ELEMS 1
#define CENTERED 1
#define QUOTIENT plain
#define TO_FLOAT 0
#define SATURATE 1
#define LOW 0.0f
#define HIGH 255.0f
#endif
#if SCALED
#define SCALE_INPUT , IN(SCALE_T, scale)
#else
#define SCALE_INPUT
#endif
#if CENTERED
#define ZERO_INPUT , IN(ZERO_T, zero)
#else
#define ZERO_INPUT
#endif
#define WALK                                                                                  \
  const IDX_T inner, const IDX_T n, const IDX_T outer, const IDX_T block, const IDX_T s_outer, \
      const IDX_T s_n, const IDX_T s_inner
#if BLOCKED
#define BLOCK(i) ((i) / block)
#else
#define BLOCK(i) (i)
#endif
#if LAST
#define PARAMETER (x1 * s_outer + BLOCK(x0) * s_n)
#else
#define PARAMETER (x2 * s_outer + BLOCK(x1) * s_n + x0 * s_inner)
#endif
// Loops over the work-item's ELEMS elements of the first dimension, which compilers vectorize:
// ONE(i) computes the i-th, element row + i of x. PARAMETERS(p) loads scale and zero point p before
// each, or once if they are equal for all.
#define FOR_EACH_ELEMENT(PARAMETERS, ONE)                                                 \
  const IDX_T size = UNIFORM || LAST ? n : inner;                                   \
  const IDX_T x1 = get_global_id(1), x2 = get_global_id(2);                         \
  const IDX_T start = get_global_id(0) * ELEMS;                                     \
  const IDX_T places = min(ELEMS, size - start);                                    \
  const IDX_T row = (UNIFORM || LAST ? x1 : x2 * n + x1) * size + start;            \
  if ((uint)start >= (uint)size) return;                                            \
  if (UNIFORM || (ELEMS > 1 && !LAST && s_inner == 0)) {                            \
    PARAMETERS(UNIFORM ? 0 : x2 * s_outer + BLOCK(x1) * s_n)                        \
    for (IDX_T i = 0; i < places; ++i) { ONE(i); }                                  \
  } else {                                                                          \
    for (IDX_T i = 0; i < places; ++i) {                                            \
      const IDX_T x0 = start + i;                                                   \
      PARAMETERS(PARAMETER)                                                         \
      ONE(i);                                                                       \
    }                                                                               \
  }
#if ELEMS > 1
#define ITEM SINGLE_ITEM
#else
#define ITEM
#endif

// 4-bit elements, two per byte, the first in the low bits: constants that stay packed.
#define load_uint4_pairs(p, i) ((int)((p)[(i) >> 1] >> (((i) & 1) << 2)) & 15)
#define load_int4_pairs(p, i) ((load_uint4_pairs(p, i) ^ 8) - 8)

#define rounded_plain(v) (v)
static inline float rounded_half(const float v) {
  ushort bits;
  vstore_half(v, 0, (half *)&bits);
  return vload_half(0, (const half *)&bits);
}
static inline float rounded_bfloat16(const float v) {
  const uint bits = as_uint(v);
  return v != v ? v : as_float((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

#if SCALED && defined(QUOTIENT)
#if TO_FLOAT
#define WHOLE_T float
#else
#define WHOLE_T int
#endif
static inline WHOLE_T quantized(const float quotient, const float zero) {
  float v = CAT(rounded_, QUOTIENT)(quotient);
#if !TO_FLOAT
  // Clamped far beyond all levels, to where adding 1.5 * 2^23 rounds to nearest even: on PoCL the
  // builtins are calls.
  v = v > -2097152.0f ? v : -2097152.0f;
  v = v < 2097152.0f ? v : 2097152.0f;
  v = ((v + 12582912.0f) - 12582912.0f) + zero;
  v = v > LOW ? v : LOW;
  v = v < HIGH ? v : HIGH;
  return (int)v;
#else
  return SATURATE ? saturated(v, HIGH) : v;
#endif
}

#if CENTERED
#define ZERO_AT(p) (float)LOAD_AS(ZERO, AT(zero), p)
#else
#define ZERO_AT(p) 0.0f
#endif
#define PARAMETERS(p) \
  const float scale_value = (float)LOAD_AS(SCALE, AT(scale), p), zero_value = ZERO_AT(p);
#define ONE(i) \
  results[i] = quantized((float)LOAD_AS(DATA, AT(x), row + i) / scale_value, zero_value)
__kernel ITEM
void quantize_linear(OUT(OUT_T, y), IN(DATA_T, x) SCALE_INPUT ZERO_INPUT, WALK) {
  // Results go to an array first: bytes may alias x, and then Intel's compiler vectorizes nothing.
  WHOLE_T results[ELEMS];
  FOR_EACH_ELEMENT(PARAMETERS, ONE)
  for (IDX_T i = 0; i < places; ++i) STORE_AS(STORED, AT(y), row + i, (OUT_VALUE_T)results[i]);
}
#endif

#ifndef QUOTIENT
#if CENTERED
#define ZERO_AT(p) (VALUE_T)LOAD_AS(ZERO, AT(zero), p)
#else
#define ZERO_AT(p) 0
#endif
#if SCALED
#define SCALE_AT(p) (float)LOAD_AS(SCALE, AT(scale), p)
#define RESULT(v) ((float)(v) * scale_value)
#else
#define SCALE_AT(p) 1.0f
#define RESULT(v) (v)
#endif
#define PARAMETERS(p)                    \
  const float scale_value = SCALE_AT(p); \
  const VALUE_T zero_value = ZERO_AT(p);
#define ONE(i)                                                            \
  const VALUE_T v = (VALUE_T)LOAD_AS(DATA, AT(x), row + i) - zero_value;  \
  STORE_AS(STORED, AT(y), row + i, (OUT_VALUE_T)RESULT(v))
__kernel ITEM
void dequantize_linear(OUT(OUT_T, y), IN(DATA_T, x) SCALE_INPUT ZERO_INPUT, WALK) {
  FOR_EACH_ELEMENT(PARAMETERS, ONE)
}
#endif
