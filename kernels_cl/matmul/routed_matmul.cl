// Matrix product of a mixture of experts: each slot (a token and one of the experts it is routed
// to) is multiplied by its expert's matrix: y[s, n] = sum over k of x[s / each, k] * w[experts[s],
// n, k].
//   x  read: DATA_T [slots / each, depth]: `each` adjacent slots share a row
//   w  read: WEIGHT_T [count, rows, depth], one matrix per expert
//   experts  read: INDEX_T [slots]; an index out of range is clamped and reported in `status`
//   y  written: DATA_T [slots, rows]
//   routed_matmul      (T_VW 1) one work-item per (n, s)
//   routed_matmul_cpu  (T_VW > 1) one work-group of one work-item per (block of T_ROWS rows of w,
//                      expert): all slots that are routed to the expert, T_MR at a time; with
//                      BY_SLOT per (block, slot)
//   DATA, WEIGHT  storages of x and y, and of w (common/storage.clh)
//   T_VW  lanes per vector along k;  T_MR, T_NR  slots, and rows of w, per register tile
#ifndef WEIGHT_T
#define DATA_T float
#define DATA plain
#define WEIGHT_T float
#define WEIGHT plain
#define INDEX_T long
#endif
#ifndef T_VW
#define T_VW 8
#define T_MR 4
#define T_NR 4
#define T_ROWS 32
#define BY_SLOT 0
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/index.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#define ROUTED                                                                               \
  OUT(DATA_T, y), IN(DATA_T, x), IN(WEIGHT_T, w), IN(INDEX_T, experts), OUT(long, status),   \
      const IDX_T slots, const IDX_T rows, const IDX_T depth, const IDX_T count, const IDX_T each

#if T_VW == 1
__kernel void routed_matmul(ROUTED) {
  const IDX_T n = get_global_id(0), s = get_global_id(1);
  if (n >= rows || s >= slots) return;
  const IDX_T expert = clrt_index((long)AT(experts)[s], count, AT(status));
  __global const WEIGHT_T *const row = AT(w) + ((size_t)expert * rows + n) * depth;
  __global const DATA_T *const from = AT(x) + s / each * depth;
  float sum = 0.0f;
  for (IDX_T k = 0; k < depth; ++k) sum = LOAD_AS(DATA, from, k) * LOAD_AS(WEIGHT, row, k) + sum;
  STORE_AS(DATA, AT(y), s * rows + n, sum);
}
#else
#include "common/repeat.clh"
#include "common/rows.clh"
#include "common/widen.clh"
#define ROWS(X) CAT(ROWS_, T_MR)(X)
#define COLUMNS(X, i) CAT(VECTORS_, T_NR)(X, i)

#define INPUT(i) \
  __global const DATA_T *const x##i = AT(x) + slot[i_min(i, have - 1)] / each * depth;
#define WEIGHTS(i, j) \
  __global const WEIGHT_T *const w##j = own + i_min(n + j, end - 1) * depth;
#define ZERO(i, j) F acc##i##_##j = (F)(0.0f);
#define ZERO_ROW(i) COLUMNS(ZERO, i)
#define LOAD_INPUT(i) const F from##i = LOAD_WIDE(DATA, x##i + k);
#define LOAD_WEIGHTS(i, j) const F weight##j = LOAD_WIDE(WEIGHT, w##j + k);
#define ADD(i, j) acc##i##_##j = from##i * weight##j + acc##i##_##j;
#define ADD_ROW(i) COLUMNS(ADD, i)
#define SUM(a, b) ((a) + (b))
#define KEEP(i, j)                                                                         \
  if (i < have && n + j < end) {                                                           \
    FOLD(acc##i##_##j, SUM)                                                                \
    float sum = acc##i##_##j.s0;                                                           \
    for (IDX_T k = whole; k < depth; ++k)                                                  \
      sum = LOAD_AS(DATA, x##i, k) * LOAD_AS(WEIGHT, w##j, k) + sum;                       \
    STORE_AS(DATA, AT(y), slot[i] * rows + n + j, sum);                                    \
  }
#define KEEP_ROW(i) COLUMNS(KEEP, i)

__kernel SINGLE_ITEM
void routed_matmul_cpu(ROUTED) {
  const IDX_T first = get_group_id(0) * T_ROWS, end = i_min(first + T_ROWS, rows);
  const IDX_T whole = depth - depth % VW;
#if BY_SLOT
  IDX_T s = get_group_id(1);
  const IDX_T last = s + 1;
  const IDX_T expert = clrt_index((long)AT(experts)[s], count, AT(status));
#else
  IDX_T s = 0;
  const IDX_T last = slots, expert = get_group_id(1);
#endif
  __global const WEIGHT_T *const own = AT(w) + (size_t)expert * rows * depth;
  while (s < last) {
    IDX_T slot[T_MR], have = 0;
    for (; s < last && have < T_MR; ++s)
      if (BY_SLOT || clrt_index((long)AT(experts)[s], count, AT(status)) == expert) slot[have++] = s;
    if (!have) return;
    ROWS(INPUT)
    for (IDX_T n = first; n < end; n += T_NR) {
      COLUMNS(WEIGHTS, 0)
      ROWS(ZERO_ROW)
      for (IDX_T k = 0; k < whole; k += VW) {
        COLUMNS(LOAD_WEIGHTS, 0)
        ROWS(LOAD_INPUT)
        ROWS(ADD_ROW)
      }
      ROWS(KEEP_ROW)
    }
  }
}
#endif
