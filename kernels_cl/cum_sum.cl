// CumSum and CumProd along one axis of [outer, n, inner].
//   cum_sum      one work-item walks one line of n elements, `inner` apart
//   cum_columns  vectors of float32 columns; a work-group has `blocks` of the outer axis
#include "common/base.clh"
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

__kernel void cum_sum(IN(DATA_T, x), OUT(DATA_T, y), const IDX_T n, const IDX_T inner) {
  const IDX_T r = get_global_id(0);
  if (r >= inner) return;
  const IDX_T base = (IDX_T)get_global_id(1) * n * inner + r;
  ACC_T sum = START;
  for (IDX_T k = 0; k < n; ++k) {
    const IDX_T at = base + TURNED(k) * inner;
    const ACC_T next = JOIN(sum, LOAD(AT(x), at));
    STORE(AT(y), at, EXCLUSIVE ? sum : next);
    sum = next;
  }
}

#else
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/rows.clh"
#include "common/columns.clh"

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void cum_columns(IN(float, x), OUT(float, y), const IDX_T outer, const IDX_T n,
                 const IDX_T inner, const IDX_T blocks) {
  COLUMN_ITEM(outer, inner, blocks)
  F sum[T_NV];
  for (IDX_T block = begin; block < end; ++block) {
    EACH sum[k] = (F)(START);
    for (IDX_T i = 0; i < n; ++i) {
      const IDX_T at = (block * n + TURNED(i)) * inner + first;
      EACH {
        const F next = JOIN(sum[k], COLUMNS(AT(x) + at));
        STORE_COLUMNS(AT(y) + at, EXCLUSIVE ? sum[k] : next)
        sum[k] = next;
      }
    }
  }
}
#endif
