// Copies a strided view of src to a strided view of dst: Transpose, Slice, Split, Concat, Expand,
// Tile and Pad.
//   src  read, dst  written: DATA_T. DATA_T is an unsigned integer type of the elements' size.
//   d0 to d5  dims of both views;  s0 to s5, t0 to t5  strides in elements of src (0 repeats an
//             element) and of dst
//   copy_strided      (GPUs) one work-item per element; adjacent work-items have elements that are
//                     adjacent along axis 5
//   copy_tiled        (T_ITEMS) through local memory, if src is contiguous along axis 4 and dst
//                     along axis 5
//   copy_strided_cpu  (CPU) a work-group of one work-item copies rows along axis 5, or square tiles
//                     of axes 4 and 5
//   copy_parts_cpu    (CPU) up to four copies of rows at once, for Concat and Split
#include "common/base.clh"
#include "common/axes.clh"
#ifndef DATA_T
#define DATA_T uint
#endif

#ifdef T_ITEMS
#define EACH 4
#define TILE (EACH * T_ITEMS)

// Transposing copy, by tiles in local memory. src is contiguous along d4 (s4 is 1), dst along d5
// (t5 is 1). A work-group of T_ITEMS has a tile of 2^wide elements along d4 and 2^high along d5,
// TILE in all: it reads along d4 and writes along d5. Tile rows are padded by one element, against
// bank conflicts in both directions.
__kernel __attribute__((reqd_work_group_size(T_ITEMS, 1, 1)))
void copy_tiled(IN(DATA_T, src), OUT(DATA_T, dst), PARAMS_6(d), PARAMS_6(s), PARAMS_6(t), const IDX_T wide,
                const IDX_T high) {
  __local DATA_T tile[TILE + TILE / 4];
  const IDX_T width = 1 << wide, height = 1 << high, item = get_local_id(0);
  const IDX_T group = get_global_id(0) / T_ITEMS, tiles5 = (d5 - 1) / height + 1;
  const IDX_T tiles4 = (d4 - 1) / width + 1, rest = group / tiles5;
  const IDX_T i0123 = rest / tiles4, first4 = (rest - i0123 * tiles4) * width;
  const IDX_T first5 = (group - rest * tiles5) * height;
  const IDX_T i012 = i0123 / d3, i3 = i0123 - i012 * d3, i01 = i012 / d2, i2 = i012 - i01 * d2;
  const IDX_T i0 = i01 / d1, i1 = i01 - i0 * d1, i4 = first4, i5 = first5;
  __global const DATA_T *const from = AT(src) + STRIDED(s);
  __global DATA_T *const to = AT(dst) + STRIDED(t);
  const IDX_T last4 = d4 - first4 - 1, last5 = d5 - first5 - 1;
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const IDX_T k = item + e * T_ITEMS, i = k & (width - 1), j = k >> wide;
    // Reads outside are clamped to the edge: unconditional loads are all in flight at once.
    tile[j * (width + 1) + i] = from[min(i, last4) + min(j, last5) * s5];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const IDX_T k = item + e * T_ITEMS, i = k >> high, j = k & (height - 1);
    if (i <= last4 && j <= last5) to[i * t4 + j] = tile[j * (width + 1) + i];
  }
}

#elif !CPU
__kernel void copy_strided(IN(DATA_T, src), OUT(DATA_T, dst), ELEMENT_PARAMS, PARAMS_6(s), PARAMS_6(t)) {
  FOR_EACH_ELEMENT AT(dst)[STRIDED(t)] = AT(src)[STRIDED(s)];
}

#else
typedef CAT(DATA_T, 4) D4;
typedef CAT(DATA_T, 16) D16;
typedef D4 __attribute__((aligned(sizeof(DATA_T)))) D4_UNALIGNED;
typedef D16 __attribute__((aligned(sizeof(DATA_T)))) D16_UNALIGNED;
#define SIDE 16

static inline void copy_row(__global DATA_T *to, __global const DATA_T *from, const IDX_T n,
                            const IDX_T t, const IDX_T s) {
  IDX_T j = 0;
  if (t == 1 && s == 1) {
    for (; j <= n - 16; j += 16)
      *(__global D16_UNALIGNED *)(to + j) = *(__global const D16_UNALIGNED *)(from + j);
    for (; j <= n - 4; j += 4)
      *(__global D4_UNALIGNED *)(to + j) = *(__global const D4_UNALIGNED *)(from + j);
  } else if (t == 1 && s == 0) {
    const D16 value = (D16)(*from);
    for (; j <= n - 16; j += 16) *(__global D16_UNALIGNED *)(to + j) = value;
  }
  for (; j < n; ++j) to[j * t] = from[j * s];
}

// Copies 4 x 4 elements transposed: to[i * t + j] = from[j * s + i].
static inline void transpose_block(__global DATA_T *to, __global const DATA_T *from, const IDX_T t,
                                   const IDX_T s) {
  const D4 a = *(__global const D4_UNALIGNED *)from;
  const D4 b = *(__global const D4_UNALIGNED *)(from + s);
  const D4 c = *(__global const D4_UNALIGNED *)(from + 2 * s);
  const D4 d = *(__global const D4_UNALIGNED *)(from + 3 * s);
  *(__global D4_UNALIGNED *)to = (D4)(a.x, b.x, c.x, d.x);
  *(__global D4_UNALIGNED *)(to + t) = (D4)(a.y, b.y, c.y, d.y);
  *(__global D4_UNALIGNED *)(to + 2 * t) = (D4)(a.z, b.z, c.z, d.z);
  *(__global D4_UNALIGNED *)(to + 3 * t) = (D4)(a.w, b.w, c.w, d.w);
}

// Copies a tile transposed: to[i * t + j] = from[j * s + i], for i < rows and j < columns, at most
// SIDE of each. The outer loop is over the axis of the larger stride: SIDE lines at a stride of 4
// KiB would evict each other from the cache.
static inline void transpose_tile(__global DATA_T *to, __global const DATA_T *from,
                                  const IDX_T rows, const IDX_T columns, const IDX_T t,
                                  const IDX_T s) {
  const IDX_T rows4 = rows & ~3, columns4 = columns & ~3;
  if (t < s) {
    for (IDX_T j = 0; j < columns4; j += 4)
      for (IDX_T i = 0; i < rows4; i += 4) transpose_block(to + i * t + j, from + j * s + i, t, s);
  } else {
    for (IDX_T i = 0; i < rows4; i += 4)
      for (IDX_T j = 0; j < columns4; j += 4) transpose_block(to + i * t + j, from + j * s + i, t, s);
  }
  for (IDX_T i = rows4; i < rows; ++i) copy_row(to + i * t, from + i, columns4, 1, s);
  for (IDX_T j = columns4; j < columns; ++j) copy_row(to + j, from + j * s, rows, t, 1);
}

// Strided copy of up to `width` elements along axis 5 of `height` rows per work-item. A row is one
// index into axes 0 to 4; rows are numbered in row-major order. If `tiled`, src is contiguous
// along axis 4 and dst along axis 5, and the work-item's rows differ along axis 4 only: they are
// transposed tile by tile.
__kernel SINGLE_ITEM
void copy_strided_cpu(IN(DATA_T, src), OUT(DATA_T, dst), PARAMS_6(d), PARAMS_6(s), PARAMS_6(t),
                      const IDX_T height, const IDX_T width, const IDX_T tiled) {
  const IDX_T dims[5] = {d0, d1, d2, d3, d4};
  const IDX_T from_steps[5] = {s0, s1, s2, s3, s4};
  const IDX_T to_steps[5] = {t0, t1, t2, t3, t4};
  const IDX_T parts = (d5 - 1) / width + 1;
  const IDX_T first = (IDX_T)get_global_id(0) / parts;
  const IDX_T begin = (IDX_T)get_global_id(0) % parts * width;
  const IDX_T n = min(width, d5 - begin);
  const IDX_T blocks = tiled ? (d4 - 1) / height + 1 : 1;
  const IDX_T row = tiled ? first / blocks * d4 + first % blocks * height : first * height;
  IDX_T at[5];
  IDX_T rest = row;
  for (int axis = 4; axis >= 0; --axis) {
    at[axis] = rest % dims[axis];
    rest /= dims[axis];
  }
  __global const DATA_T *from = AT(src) + begin * s5;
  __global DATA_T *to = AT(dst) + begin * t5;
  for (int axis = 0; axis < 5; ++axis) {
    from += at[axis] * from_steps[axis];
    to += at[axis] * to_steps[axis];
  }
  if (tiled) {
    const IDX_T rows = min(height, d4 - at[4]);
    for (IDX_T i = 0; i < rows; i += SIDE) {
      for (IDX_T j = 0; j < n; j += SIDE)
        transpose_tile(to + i * t4 + j, from + j * s5 + i, min(SIDE, rows - i), min(SIDE, n - j),
                       t4, s5);
    }
    return;
  }
  const IDX_T end = UP_TO(row, height, d0 * d1 * d2 * d3 * d4);
  for (IDX_T r = row; r < end; ++r) {
    copy_row(to, from, n, t5, s5);
    for (int axis = 4; axis >= 0; --axis) {
      from += from_steps[axis];
      to += to_steps[axis];
      if (++at[axis] < dims[axis]) break;
      from -= dims[axis] * from_steps[axis];
      to -= dims[axis] * to_steps[axis];
      at[axis] = 0;
    }
  }
}

// Up to four copies of rows, for Concat and Split: copy i has `rows` rows of `width<i>` elements,
// which are s<i> elements apart in x<i> and t<i> in y<i>; width<i> is 0 for an unused copy. A
// work-item has `height` rows, and of each one of `pieces` chunks of `width` elements.
#define PART(i) \
  IN(DATA_T, x##i), OUT(DATA_T, y##i), const IDX_T width##i, const IDX_T s##i, const IDX_T t##i
#define COPY_PART(i)                                                                     \
  for (IDX_T row = first; row < end && begin < width##i; ++row)                          \
    copy_row(AT(y##i) + row * t##i + begin, AT(x##i) + row * s##i + begin,               \
             min(width, width##i - begin), 1, 1);

__kernel SINGLE_ITEM
void copy_parts_cpu(PART(0), PART(1), PART(2), PART(3), const IDX_T rows, const IDX_T height,
                    const IDX_T pieces, const IDX_T width) {
  const IDX_T first = (IDX_T)get_global_id(0) / pieces * height;
  const IDX_T end = UP_TO(first, height, rows);
  const IDX_T begin = (IDX_T)get_global_id(0) % pieces * width;
  COPY_PART(0)
  COPY_PART(1)
  COPY_PART(2)
  COPY_PART(3)
}
#endif
