// QuantizeLinear and DequantizeLinear over x seen as [outer, n, inner]. Scale and zero point have an
// element per block of `block` places along n: at o * s_outer + i / block * s_n + r * s_inner for
// the place (o, i, r), so that strides of 0 make one of them serve a whole axis.
//   quantize_linear    y = x / scale rounded to QUOTIENT, then to the nearest even, plus zero point,
//                      kept within LOW and HIGH;  TO_FLOAT: y is a small float, there is no zero
//                      point, LOW and HIGH hold where SATURATE
//   dequantize_linear  y = (x - zero point) * scale;  without SCALED the difference
// Work-item (x, y, z): places r, i, o;  with LAST (inner is 1) i, o;  with UNIFORM (one scale, and
// outer and inner are 1) i. So there is no division but that by a block's size.
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
#define CENTERED 1
#define QUOTIENT float
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
#if UNIFORM
#define PARAMETER 0
#elif LAST
#define PARAMETER (x1 * s_outer + x0 / block * s_n)
#else
#define PARAMETER (x2 * s_outer + x1 / block * s_n + x0 * s_inner)
#endif
#define PLACE                                                                            \
  const IDX_T x0 = get_global_id(0), x1 = get_global_id(1), x2 = get_global_id(2);       \
  if (x0 >= (UNIFORM || LAST ? n : inner)) return;                                       \
  const IDX_T at = UNIFORM || LAST ? x1 * n + x0 : (x2 * n + x1) * inner + x0;           \
  const IDX_T p = PARAMETER;

// Four bits to an element, two to a byte, the first one low: constants that are kept packed.
#define load_uint4_pairs(p, i) ((int)((p)[(i) >> 1] >> (((i) & 1) << 2)) & 15)
#define load_int4_pairs(p, i) ((load_uint4_pairs(p, i) ^ 8) - 8)

#define rounded_float(v) (v)
static inline float rounded_half(const float v) {
  ushort bits;
  vstore_half(v, 0, (half *)&bits);
  return vload_half(0, (const half *)&bits);
}
static inline float rounded_bfloat16(const float v) {
  const uint bits = as_uint(v);
  return v != v ? v : as_float((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}
#define ROUNDED_OF(kind, v) rounded_##kind(v)
#define ROUNDED(kind, v) ROUNDED_OF(kind, v)

#if SCALED && defined(QUOTIENT)
__kernel void quantize_linear(OUT(OUT_T, y), IN(DATA_T, x) SCALE_INPUT ZERO_INPUT, WALK) {
  PLACE
  const float scale = (float)LOAD_AS(SCALE, AT(scale), p);
  float v = ROUNDED(QUOTIENT, (float)LOAD_AS(DATA, AT(x), at) / scale);
#if !TO_FLOAT
  // Far past all bounds, but where adding 1.5 * 2^23 rounds to the nearest integer, ties to even:
  // on PoCL the builtins are calls.
  v = v > -2097152.0f ? v : -2097152.0f;
  v = v < 2097152.0f ? v : 2097152.0f;
  v = (v + 12582912.0f) - 12582912.0f;
#if CENTERED
  v += (float)LOAD_AS(ZERO, AT(zero), p);
#endif
  v = v > LOW ? v : LOW;
  v = v < HIGH ? v : HIGH;
#elif SATURATE
  v = saturated(v, HIGH);
#endif
  STORE_AS(STORED, AT(y), at, (OUT_VALUE_T)v);
}
#endif

#ifndef QUOTIENT
__kernel void dequantize_linear(OUT(OUT_T, y), IN(DATA_T, x) SCALE_INPUT ZERO_INPUT, WALK) {
  PLACE
  VALUE_T v = (VALUE_T)LOAD_AS(DATA, AT(x), at);
#if CENTERED
  v -= (VALUE_T)LOAD_AS(ZERO, AT(zero), p);
#endif
#if SCALED
  const float y_value = (float)v * (float)LOAD_AS(SCALE, AT(scale), p);
#else
  const VALUE_T y_value = v;
#endif
  STORE_AS(STORED, AT(y), at, (OUT_VALUE_T)y_value);
}
#endif
