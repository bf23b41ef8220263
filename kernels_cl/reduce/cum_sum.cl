// CumSum and CumProd along the second axis of [outer, n, step].
//   x  read, y  written: storage DATA_T [outer, n, step], computed in ACC_T
//   cum_sum  (VW 1) one work-item per line of n elements
//   cum_cpu  (VW > 1) one work-group of one work-item per (`columns` of the `step` columns,
//            `blocks` outer indices). A row is the previous row of y, still in the cache, plus a
//            row of x. Lines with step 1 are computed four at a time, since the sums of one line
//            depend on each other
//   JOIN(a, b), START  sum or product, and its neutral element
//   EXCLUSIVE  1: element k is not part of result k;  REVERSE  1: sums run from the end
//   VW, T_VW  lanes per vector; 1 selects cum_sum
#include "common/base.clh"
#include "common/lines.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define ACC_T float
#endif
#ifndef JOIN
#define EXCLUSIVE 0
#define REVERSE 0
#define START 0
#define JOIN(a, b) ((a) + (b))
#endif
#ifndef T_VW
#define T_VW 8
#endif
#ifndef VW
#define VW T_VW
#endif
#define TURNED(k) (REVERSE ? n - 1 - (k) : (k))
#if VW == 1
__kernel void cum_sum(IN(DATA_T, x), OUT(DATA_T, y), LINES) {
  LINE_ITEM
  ACC_T sum = START;
  for (IDX_T k = 0; k < n; ++k) {
    const IDX_T place = at + TURNED(k) * step;
    const ACC_T next = JOIN(sum, LOAD(AT(x), place));
    STORE(AT(y), place, EXCLUSIVE ? sum : next);
    sum = next;
  }
}

#else
typedef CAT(DATA_T, VW) V;
typedef V __attribute__((aligned(sizeof(DATA_T)))) V_UNALIGNED;
#define VECTOR_AT(p) (*(__global V_UNALIGNED *)(p))
#define VECTOR_IN(p) (*(__global const V_UNALIGNED *)(p))
#define LINE_SUM(l)                                \
  {                                                \
    const DATA_T next = JOIN(sum##l, from[l * n + k]); \
    to[l * n + k] = EXCLUSIVE ? sum##l : next;     \
    sum##l = next;                                 \
  }

__kernel SINGLE_ITEM
void cum_cpu(IN(DATA_T, x), OUT(DATA_T, y), const IDX_T outer, const IDX_T n, const IDX_T step,
             const IDX_T columns, const IDX_T blocks) {
  const IDX_T first = get_group_id(0) * columns, begin = get_group_id(1) * blocks;
  const IDX_T width = min(columns, step - first), end = min(begin + blocks, outer);
  if (step == 1) {
    IDX_T block = begin;
    for (; block + 4 <= end; block += 4) {
      __global const DATA_T *const from = AT(x) + block * n;
      __global DATA_T *const to = AT(y) + block * n;
      DATA_T sum0 = START, sum1 = START, sum2 = START, sum3 = START;
      for (IDX_T i = 0; i < n; ++i) {
        const IDX_T k = TURNED(i);
        LINE_SUM(0) LINE_SUM(1) LINE_SUM(2) LINE_SUM(3)
      }
    }
    for (; block < end; ++block) {
      __global const DATA_T *const from = AT(x) + block * n;
      __global DATA_T *const to = AT(y) + block * n;
      DATA_T sum0 = START;
      for (IDX_T i = 0; i < n; ++i) {
        const IDX_T k = TURNED(i);
        LINE_SUM(0)
      }
    }
    return;
  }
  for (IDX_T block = begin; block < end; ++block) {
    for (IDX_T i = 0; i < n; ++i) {
      __global DATA_T *const to = AT(y) + (block * n + TURNED(i)) * step + first;
      __global const DATA_T *const last = AT(y) + (block * n + TURNED(max(i, 1) - 1)) * step + first;
      __global const DATA_T *const from =
          AT(x) + (block * n + TURNED(EXCLUSIVE ? max(i, 1) - 1 : i)) * step + first;
      IDX_T c = 0;
      if (i == 0) {
        for (; c + VW <= width; c += VW)
          VECTOR_AT(to + c) = EXCLUSIVE ? (V)(START) : JOIN((V)(START), VECTOR_IN(from + c));
        for (; c < width; ++c) to[c] = EXCLUSIVE ? START : JOIN(START, from[c]);
      } else {
        for (; c + VW <= width; c += VW)
          VECTOR_AT(to + c) = JOIN(VECTOR_IN(last + c), VECTOR_IN(from + c));
        for (; c < width; ++c) to[c] = JOIN(last[c], from[c]);
      }
    }
  }
}
#endif
