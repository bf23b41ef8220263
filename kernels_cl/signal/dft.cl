// Discrete Fourier transforms of lines of x: y[k] = sum over j < length of x[j] * table[j * k mod
// n], / divisor.
//   dft_table  writes table ACC_T [n, 2]: the n complex roots of unity e^(2 pi i sign j / n), real
//              and imaginary part; one work-item per root
//   dft        reads x and table, writes y; one work-item per (k, line within its block, block), k
//              < outputs. Strides, in (complex) numbers: s0, s1, s2 of x from block to block, line
//              to line, j to j + 1; t0, t1, t2 of y, the last from k to k + 1
//     COMPLEX  1: x has real and imaginary parts [.., 2]; 0: it is real
//     REAL     1: y is real, and x is the first half of a transform whose second half mirrors it;
//              0: y is complex, [.., 2]
//     WINDOW   1: x is multiplied by window DATA_T [length]
//     DATA_T, ACC_T  storage of x and y; type computed in
#include "common/base.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define COMPLEX 1
#define REAL 0
#define WINDOW 1
#endif
#ifndef ACC_T
#define ACC_T float
#endif
#define ACC2 CAT(ACC_T, 2)
#if WINDOW
#define WINDOW_INPUT , IN(DATA_T, window)
#define WEIGHT(j) LOAD(AT(window), j)
#else
#define WINDOW_INPUT
#define WEIGHT(j) 1
#endif

__kernel void dft_table(OUT(ACC_T, table), const IDX_T n, const IDX_T sign) {
  const IDX_T i = get_global_id(0);
  if (i >= n) return;
  // The lower half by symmetry: small angles are the exact ones.
  const IDX_T from_top = 2 * i > n ? n - i : i;
  const ACC_T angle = (ACC_T)(2 * from_top) / (ACC_T)n;
  const ACC_T sine = sinpi(angle) * (ACC_T)(2 * i > n ? -sign : sign);
  AT(table)[2 * i] = cospi(angle);
  AT(table)[2 * i + 1] = sine;
}

// Transforms each line of x to a line of y. s0, s1, s2: strides of x between blocks, lines and
// elements; t0, t1, t2: those of y. Strides of complex data count complex elements, of 2 numbers
// each: x with COMPLEX, y without REAL.
__kernel void dft(OUT(DATA_T, y), IN(DATA_T, x), IN(ACC_T, table) WINDOW_INPUT, const IDX_T n,
                  const IDX_T length, const IDX_T outputs, const IDX_T s0, const IDX_T s1,
                  const IDX_T s2, const IDX_T t0, const IDX_T t1, const IDX_T t2,
                  const IDX_T divisor) {
  const IDX_T k = get_global_id(0), line = get_global_id(1), block = get_global_id(2);
  if (k >= outputs) return;
  const IDX_T from = block * s0 + line * s1;
  ACC2 sum = (ACC2)(0);
  IDX_T at = 0;
  for (IDX_T j = 0; j < length; ++j) {
    const ACC2 root = (ACC2)(AT(table)[2 * at], AT(table)[2 * at + 1]);
    at += k;
    if (at >= n) at -= n;
    const IDX_T i = from + j * s2;
#if COMPLEX
    ACC2 v = (ACC2)(LOAD(AT(x), 2 * i), LOAD(AT(x), 2 * i + 1)) * (ACC2)(WEIGHT(j));
#else
    ACC2 v = (ACC2)(LOAD(AT(x), i) * WEIGHT(j), 0);
#endif
#if REAL
    if (j > 0 && 2 * j != n) v *= (ACC2)(2);
#endif
    sum += (ACC2)(v.x * root.x - v.y * root.y, v.x * root.y + v.y * root.x);
  }
  const IDX_T to = block * t0 + line * t1 + k * t2;
#if REAL
  STORE(AT(y), to, sum.x / divisor);
#else
  STORE(AT(y), 2 * to, sum.x / divisor);
  STORE(AT(y), 2 * to + 1, sum.y / divisor);
#endif
}
