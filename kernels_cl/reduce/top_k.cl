// TopK along the second axis of x [outer, n, inner]. The order is total: equal elements are ordered
// by their indices, and NaN is largest. A line is the n elements of one (outer, inner) index.
//   x        read: storage DATA_T, compared as VALUE_T
//   values   written: DATA_T [outer, k, inner], the best k elements, best first
//   indices  written: int64 [outer, k, inner], their indices along the axis
//   LARGEST  1: the largest elements are best; 0: the smallest
// On GPUs by merging sorted lists: list int32 [line, capacity] has the indices of the best min(run,
// k) elements of each run of `run` elements, best first.
//   top_k_blocks  writes the lists of all runs, by insertion; one work-item per (run, line)
//   top_k_merge   writes `merged`, the merged lists of pairs of runs; one work-item per (entry,
//                 line) finds its rank in the other list
//   top_k_take    writes values and indices from the list of a single run; one work-item per (j,
//                 line), j < k
// On CPUs:
//   top_k_cpu     writes values and indices by a heap of the k best in `list`, with the worst at
//                 the root; one work-group of one work-item per line
#include "common/base.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#define VALUE_T float
#define LARGEST 1
#define IS_FLOAT 1
#endif

#define LINE                                             \
  const IDX_T id = get_global_id(0);                     \
  const IDX_T line = get_global_id(1);                   \
  const IDX_T outer = line / inner;                      \
  const IDX_T at = outer * n * inner + line - outer * inner;
#define VALUE(place) LOAD(AT(x), at + (place) * inner)
#define LENGTH(r) min(min(run, n - (r) * run), k)

static inline bool less(const VALUE_T a, const VALUE_T b) {
#if IS_FLOAT
  return a < b || (b != b && a == a);
#else
  return a < b;
#endif
}

// Returns whether element a, at index i, ranks before element b, at index j: it is better
// (LARGEST), or equal with a lower index.
static inline bool before(const VALUE_T a, const IDX_T i, const VALUE_T b, const IDX_T j) {
  const bool first = LARGEST ? less(b, a) : less(a, b);
  const bool second = LARGEST ? less(a, b) : less(b, a);
  return first || (!second && i < j);
}

__kernel void top_k_blocks(IN(DATA_T, x), OUT(int, list), const IDX_T n, const IDX_T inner,
                           const IDX_T k, const IDX_T capacity, const IDX_T run) {
  LINE
  if (get_global_id(0) * run >= (size_t)n) return;
  const IDX_T kept = min(run, k), end = UP_TO(id * run, run, n);
  __global int *const to = AT(list) + line * capacity + id * kept;
  IDX_T filled = 0;
  for (IDX_T i = id * run; i < end; ++i) {
    const VALUE_T v = VALUE(i);
    IDX_T p = filled;
    // Listed elements have lower indices, so they come first among equals.
    while (p > 0 && before(v, i, VALUE(to[p - 1]), to[p - 1])) {
      if (p < kept) to[p] = to[p - 1];
      --p;
    }
    if (p < kept) {
      to[p] = i;
      filled = min(filled + 1, kept);
    }
  }
}

__kernel void top_k_merge(IN(DATA_T, x), IN(int, list), OUT(int, merged), const IDX_T n,
                          const IDX_T inner, const IDX_T k, const IDX_T capacity,
                          const IDX_T run) {
  LINE
  const IDX_T kept = min(run, k), own = id / kept, p = id - own * kept;
  // In 64 bits: there are work-items past the last run.
  if ((size_t)own * run >= (size_t)n || p >= LENGTH(own)) return;
  __global const int *const lists = AT(list) + line * capacity;
  const IDX_T other = own ^ 1;
  const IDX_T place = lists[own * kept + p];
  const VALUE_T v = VALUE(place);
  IDX_T low = 0, high = (size_t)other * run < (size_t)n ? LENGTH(other) : 0;
  while (low < high) {
    const IDX_T middle = low + (high - low) / 2;
    const IDX_T there = lists[other * kept + middle];
    if (before(VALUE(there), there, v, place)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const IDX_T wide = run < k - run ? 2 * run : k;
  if (p + low < wide) AT(merged)[line * capacity + own / 2 * wide + p + low] = place;
}

__kernel void top_k_take(IN(DATA_T, x), IN(int, list), OUT(DATA_T, values), OUT(long, indices),
                         const IDX_T n, const IDX_T inner, const IDX_T k, const IDX_T capacity) {
  LINE
  if (id >= k) return;
  const IDX_T place = AT(list)[line * capacity + id];
  const IDX_T y = (outer * k + id) * inner + line - outer * inner;
  STORE(AT(values), y, VALUE(place));
  AT(indices)[y] = place;
}

#define ENTRY(place) LOAD(x, (place) * inner)

// Moves the entry of heap node p down to its place, so that the heap is in order below p. The heap
// has `size` indices of elements of x, which are `inner` apart, the worst element's at the root.
static inline void sift_down(__global int *heap, IDX_T p, const IDX_T size,
                             __global const DATA_T *x, const IDX_T inner) {
  const IDX_T place = heap[p];
  const VALUE_T v = ENTRY(place);
  while (p < size / 2) {  // it has a child
    IDX_T child = 2 * p + 1;
    IDX_T below = heap[child];
    VALUE_T there = ENTRY(below);
    if (child + 1 < size) {
      const IDX_T right = heap[child + 1];
      const VALUE_T value = ENTRY(right);
      if (before(there, below, value, right)) {
        ++child;
        below = right;
        there = value;
      }
    }
    if (!before(v, place, there, below)) break;
    heap[p] = below;
    p = child;
  }
  heap[p] = place;
}

__kernel SINGLE_ITEM
void top_k_cpu(IN(DATA_T, x), OUT(int, list), OUT(DATA_T, values), OUT(long, indices),
               const IDX_T n, const IDX_T inner, const IDX_T k) {
  const IDX_T line = get_global_id(0);
  const IDX_T outer = line / inner;
  __global const DATA_T *const from = AT(x) + outer * n * inner + line % inner;
  __global int *const heap = AT(list) + line * k;
  const IDX_T to = outer * k * inner + line % inner;
  for (IDX_T i = 0; i < k; ++i) heap[i] = i;
  for (IDX_T p = k / 2 - 1; p >= 0; --p) sift_down(heap, p, k, from, inner);
  VALUE_T worst = LOAD(from, heap[0] * inner);
  for (IDX_T i = k; i < n; ++i) {
    const VALUE_T v = LOAD(from, i * inner);
    // Elements of the heap have lower indices, so they come first among equals.
    if (LARGEST ? less(worst, v) : less(v, worst)) {
      heap[0] = i;
      sift_down(heap, 0, k, from, inner);
      worst = LOAD(from, heap[0] * inner);
    }
  }
  for (IDX_T end = k - 1; end >= 0; --end) {
    const IDX_T place = heap[0];
    heap[0] = heap[end];
    sift_down(heap, 0, end, from, inner);
    STORE(AT(values), to + end * inner, LOAD(from, place * inner));
    AT(indices)[to + end * inner] = place;
  }
}
