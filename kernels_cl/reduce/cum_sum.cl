// CumSum and CumProd along one axis of [outer, n, step].
//   cum_sum      a work-item walks a line
//   cum_columns  vectors of float32 columns; a work-group has `blocks` of the outer axis
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
#define T_NV 8
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
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/rows.clh"
#include "common/columns.clh"

__kernel SINGLE_ITEM
void cum_columns(IN(float, x), OUT(float, y), const IDX_T outer, const IDX_T n,
                 const IDX_T step, const IDX_T blocks) {
  COLUMN_ITEM(outer, step, blocks)
  F sum[T_NV];
  for (IDX_T block = begin; block < end; ++block) {
    EACH sum[k] = (F)(START);
    for (IDX_T i = 0; i < n; ++i) {
      const IDX_T at = (block * n + TURNED(i)) * step + first;
      EACH {
        const F next = JOIN(sum[k], COLUMNS(AT(x) + at));
        STORE_COLUMNS(AT(y) + at, EXCLUSIVE ? sum[k] : next)
        sum[k] = next;
      }
    }
  }
}
#endif
