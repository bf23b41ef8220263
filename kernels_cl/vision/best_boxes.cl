// NonMaxSuppression: selects boxes by falling score; a box is left out if its IoU with a box that
// was selected before exceeds `overlap`.
//   boxes   read: float32 [batch, count, 4]: two opposite corners, or with CENTRES 1 the centre and
//           the size
//   scores  read: float32 [batch, class, count]; boxes with a score of at most `least` are left out
//           unless `all` is 1
//   heap    scratch int32 [batch * class, count]
//   y       written: int32 [batch * class, most]: indices of the selected boxes, best first, then
//           -1
// One work-item per batch * classes + class, of `rows`: candidates are popped from a heap, best
// first, and kept if no kept box overlaps them; so no more boxes are examined once `most` are kept.
#include "common/base.clh"
#ifndef CENTRES
#define CENTRES 0
#endif
// No contraction: intersections must round as the reference's.
#pragma OPENCL FP_CONTRACT OFF

// Returns whether box i of score a ranks before box j of score b: higher scores first, NaN last,
// equal scores by index.
static inline bool before(const float a, const IDX_T i, const float b, const IDX_T j) {
  const bool first = a > b || (a == a && b != b);
  const bool second = b > a || (b == b && a != a);
  return first || (!second && i < j);
}

// If an operand is NaN, so is the area of its box, or it is 0.
#define LESSER(a, b) ((a) < (b) ? (a) : (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

// low, high: return the lower and the upper bound of a box along `axis`, 0 or 1.
static inline float low(__global const float *const box, const int axis) {
  const float a = box[axis], b = box[axis + 2];
  return CENTRES ? a - b / 2 : LESSER(a, b);
}

static inline float high(__global const float *const box, const int axis) {
  const float a = box[axis], b = box[axis + 2];
  return CENTRES ? a + b / 2 : LARGER(a, b);
}

static inline float area(__global const float *const box) {
  return (high(box, 0) - low(box, 0)) * (high(box, 1) - low(box, 1));
}

static inline float common_size(__global const float *const a, __global const float *const b,
                                const int axis) {
  const float a0 = low(a, axis), a1 = high(a, axis), b0 = low(b, axis), b1 = high(b, axis);
  const float size = LESSER(a1, b1) - LARGER(a0, b0);
  return LARGER(size, 0.0f);
}

static inline bool overlaps(__global const float *const a, __global const float *const b,
                            const float overlap) {
  const float common = common_size(a, b, 1) * common_size(a, b, 0);
  const float limit = (area(a) + area(b) - common) * overlap;
  // Boxes without area do not overlap; the IoU of infinite boxes is not defined.
  return common > 0.0f && common > limit;
}

// Moves the box of heap node `root` down to its place, so that the heap is in order below `root`.
// The heap has n box indices, the best box at its top.
static inline void sink(__global int *const heap, __global const float *const scores, IDX_T root,
                        const IDX_T n) {
  const IDX_T place = heap[root];
  const float score = scores[place];
  for (IDX_T child = 2 * root + 1; child < n; child = 2 * root + 1) {
    if (child + 1 < n && before(scores[heap[child + 1]], heap[child + 1], scores[heap[child]],
                                heap[child]))
      ++child;
    if (!before(scores[heap[child]], heap[child], score, place)) break;
    heap[root] = heap[child];
    root = child;
  }
  heap[root] = place;
}

__kernel void best_boxes(IN(float, boxes), IN(float, scores), OUT(int, heap), OUT(int, y),
                         const IDX_T count, const IDX_T classes, const IDX_T most,
                         const IDX_T rows, const int all, const float overlap,
                         const float least) {
  const IDX_T row = get_global_id(0);
  if (row >= rows) return;
  __global const float *const box = AT(boxes) + row / classes * count * 4;
  __global const float *const score = AT(scores) + row * count;
  __global int *const own = AT(heap) + row * count;
  __global int *const kept = AT(y) + row * most;
  IDX_T n = 0;
  for (IDX_T i = 0; i < count; ++i)
    if (all || score[i] > least) own[n++] = i;
  for (IDX_T i = n / 2; i-- > 0;) sink(own, score, i, n);
  IDX_T found = 0;
  while (n > 0 && found < most) {
    const IDX_T place = own[0];
    own[0] = own[--n];
    if (n > 0) sink(own, score, 0, n);
    IDX_T k = 0;
    while (k < found && !overlaps(box + 4 * place, box + 4 * kept[k], overlap)) ++k;
    if (k == found) kept[found++] = place;
  }
  for (; found < most; ++found) kept[found] = -1;
}
