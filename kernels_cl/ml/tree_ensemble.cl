// Decision trees, in two launches: tree_leaves finds the leaf of each tree for each row of x,
// tree_targets aggregates the leaves' weights per target. Operands and work-items are described at
// each kernel. A child of a node is the index of a node, or, if negative, ~child is the index of a
// leaf.
//   DATA_T, REAL_T  storage of x and y; type of thresholds and sums
//   AGGREGATE       0: mean; 1: sum; 2: minimum; 3: maximum
#include "common/base.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define REAL_T float
#endif
#ifndef AGGREGATE
#define AGGREGATE 1
#endif

// Returns whether a node's condition holds for feature value v: v compared with the threshold
// `split` by the comparison that mode & 7 selects.
static inline int goes(const int mode, const REAL_T v, const REAL_T split) {
  switch (mode & 7) {
    case 0: return v <= split;
    case 1: return v < split;
    case 2: return v >= split;
    case 3: return v > split;
    case 4: return v == split;
    default: return v != split;
  }
}

// Finds the leaf that each row of x [row, features] reaches in each tree: found [row, tree], its
// index. nodes [node, 4]: feature, mode (as in `goes`; 8 and more: NaN takes the true branch),
// true child, false child. splits [node]: thresholds. roots [tree]: child at the root. One
// work-item per (tree, row).
__kernel void tree_leaves(IN(DATA_T, x), IN(int, nodes), IN(REAL_T, splits), IN(int, roots),
                          OUT(int, found), const IDX_T trees, const IDX_T features) {
  const IDX_T tree = get_global_id(0), row = get_global_id(1);
  if (tree >= trees) return;
  int at = AT(roots)[tree];
  while (at >= 0) {
    __global const int *node = AT(nodes) + 4 * at;
    const REAL_T v = LOAD(AT(x), row * features + node[0]);
    const int missing = node[1] >= 8 && v != v;
    at = missing || goes(node[1], v, AT(splits)[at]) ? node[2] : node[3];
  }
  AT(found)[row * trees + tree] = ~at;
}

// Aggregates the weights of the leaves found [rows, trees] per target: y [rows, targets]. Leaf l
// has weights[starts[l]] to weights[starts[l + 1] - 1]; weights[i] is for target entries[i]. sums
// [rows, targets] is scratch. One work-item per row.
__kernel void tree_targets(IN(int, found), IN(int, starts), IN(int, entries), IN(REAL_T, weights),
                           OUT(DATA_T, y), OUT(REAL_T, sums), const IDX_T rows, const IDX_T trees,
                           const IDX_T targets) {
  const IDX_T row = get_global_id(0);
  if (row >= rows) return;
  __global REAL_T *sum = AT(sums) + row * targets;
  for (IDX_T t = 0; t < targets; ++t) sum[t] = AGGREGATE < 2 ? 0 : NAN;
  for (IDX_T tree = 0; tree < trees; ++tree) {
    const int leaf = AT(found)[row * trees + tree];
    for (int i = AT(starts)[leaf]; i < AT(starts)[leaf + 1]; ++i) {
      const int t = AT(entries)[i];
      const REAL_T w = AT(weights)[i];
      const REAL_T s = sum[t];
      sum[t] = AGGREGATE < 2 ? s + w : s != s || (AGGREGATE == 2 ? w < s : w > s) ? w : s;
    }
  }
  for (IDX_T t = 0; t < targets; ++t) {
    const REAL_T s = sum[t];
    STORE(AT(y), row * targets + t, AGGREGATE == 0 ? s / trees : s != s && AGGREGATE >= 2 ? 0 : s);
  }
}
