// y = epilogue(convolution of x by w), float32, channels first, for GPUs: the matrix product of
// transposed w and the windows of x, in tiles (common/group_tile.clh); windows are read from x in
// place.
//   w  read: weights [groups, K, M];  x  read: [images, groups, C, plane]
//   y  written: [split, images, groups, M, P]; with several splits of K these are partial products
//   M  output channels per group;  C  input channels per group;  plane  elements per channel of x;
//      P  output positions per image;  K  C times the number of window elements
//   Geometry, one argument per spatial axis 0 to 2: in, out: sizes of x and y; kernel: window size;
//     stride; dilation; pad: padding before
// Rows of the product are output channels, its columns the positions of all images. One work-group
// of T_SIDE x T_SIDE work-items per (tile of TILE_N columns, tile of TILE_M rows, split * groups +
// group). A split sums `slices` of the `all` slices of K, T_TK deep each.
//   S_WINDOW  0: 1 x 1 window, stride 1, no padding: the window is the element at its position; 1:
//             K is ordered [window element][channel], and a slice has channels of one window
//             element only; 2: K is ordered [channel][window element], for few channels
//   S_WHOLE   1: slices need no bounds check: none has rows of w past the last one or of the next
//             window element
//   T_RM, T_RN  rows and columns of the product per work-item
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual),
//               described in matmul/gemm_cpu.cl; its variables: i0 is the image, i1 the group, m
//               the output channel within the group, n the position in the image
#ifndef T_RM
#define T_RM 4
#define T_RN 8
#define T_TK 16
#define T_SIDE 16
#endif
#ifndef EPILOGUE_BODY
#define S_WINDOW 1
#define S_WHOLE 0
#define EPILOGUE_PARAMS
#define EPILOGUE_LOADS
#define EPILOGUE_BODY
#define EPILOGUE_RESULT v0
#endif
#define VW 1
#define S_A_K_LAST 0
#define S_B_N_LAST 1
#include "common/base.clh"
#include "common/axes.clh"
#include "common/storage.clh"
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/operands.clh"
#include "common/group_tile.clh"

#if S_WINDOW
#define WINDOW_INPUTS \
  , PARAMS_3(in), PARAMS_3(out), PARAMS_3(kernel), PARAMS_3(stride), PARAMS_3(dilation), PARAMS_3(pad)
#else
#define WINDOW_INPUTS
#endif
#define WITHIN(at, size) ((uint)(at) < (uint)(size))
#define IMAGE_OF(at) (images > 1 ? (at) / P : 0)

// Index in the slice (k) of the u-th element that a work-item loads. All its elements are of one
// row or column, since a tile has at most ITEMS rows or columns (`side`).
#define K_OF(u, side) (item / (side) + (u) * (ITEMS / (side)))
// A partial slice has `left` valid k; reads past them are clamped to the last.
#define IS_WHOLE(side) (S_WHOLE && IS_EXACT(side))
#define REAL_K(k, side) (IS_WHOLE(side) ? (k) : i_min(k, left - 1))
#define IS_REAL(k, side) (IS_WHOLE(side) || (k) < left)

// Loads the next slice into a_next and b_next: rows of w from `k_row` on, and the window elements.
// `left` is the number of valid k from k_row on: of the tap (S_WINDOW 1), else of K.
#define FETCH_SLICE(slice)                                                               \
  EACH_ELEMENT(u, SHARE(TILE_M)) {                                                       \
    const IDX_T k = K_OF(u, TILE_M);                                                     \
    const float v = weights[(k_row + REAL_K(k, TILE_M)) * M];                            \
    a_next[u] = IS_REAL(k, TILE_M) ? v : 0.0f;                                           \
  }                                                                                      \
  EACH_ELEMENT(u, SHARE(TILE_N)) {                                                       \
    const IDX_T k = K_OF(u, TILE_N);                                                     \
    GATHER(slice, k)                                                                     \
  }                                                                                      \
  NEXT_SLICE
#define FETCH_FIRST      \
  if (first < end) {     \
    FETCH_SLICE(first)   \
  }
#define FETCH(slice)     \
  if ((slice) < end) {   \
    FETCH_SLICE(slice)   \
  }

#if S_WINDOW == 2
// Position of a k in the window: offset in the image and along each axis; a k past the end is
// outside of every image.
#define PREPARE(slice)                                                                   \
  if (item < T_TK) {                                                                     \
    const IDX_T k = (slice) * T_TK + item, t12 = k / kernel2, t01 = t12 / kernel1;       \
    const IDX_T channel = t01 / kernel0, at0 = (t01 - channel * kernel0) * dilation0;    \
    const IDX_T at1 = (t12 - t01 * kernel1) * dilation1, at2 = (k - t12 * kernel2) * dilation2; \
    const uint far = (uint)channel * plane + ((uint)at0 * in1 + at1) * in2 + at2;        \
    places[(slice) & 1][item] = (int4)((int)far, k < K ? at0 : INT_MIN / 2, at1, at2);   \
  }
#define GATHER(slice, k)                                                                 \
  const int4 place = places[(slice) & 1][IS_EXACT(TILE_N) ? k : i_min(k, T_TK - 1)];     \
  const bool inside = WITHIN(from0 + place.s1, in0) && WITHIN(from1 + place.s2, in1) &&  \
                      WITHIN(from2 + place.s3, in2);                                     \
  const float v = image[inside ? origin + place.s0 : 0];                                 \
  b_next[u] = inside ? v : 0.0f;
#else
#define GATHER(slice, k)                                                                 \
  const float v = image[in_plane + (C - left + REAL_K(k, TILE_N)) * plane];              \
  b_next[u] = inside && IS_REAL(k, TILE_N) ? v : 0.0f;
#endif

#if S_WINDOW == 1
#define NEXT_SLICE                                                                       \
  k_row += T_TK;                                                                         \
  left -= T_TK;                                                                          \
  if (left <= 0) {                                                                       \
    k_row += left;                                                                       \
    left = C;                                                                            \
    if (++t2 == kernel2) {                                                               \
      t2 = 0;                                                                            \
      if (++t1 == kernel1) {                                                             \
        t1 = 0;                                                                          \
        ++t0;                                                                            \
      }                                                                                  \
    }                                                                                    \
    FIND_TAP                                                                             \
  }
// Offset of the element under the tap in a plane of the image; 0, and masked, if outside.
#define FIND_TAP                                                                         \
  {                                                                                      \
    const IDX_T at0 = from0 + t0 * dilation0, at1 = from1 + t1 * dilation1;              \
    const IDX_T at2 = from2 + t2 * dilation2;                                            \
    inside = WITHIN(at0, in0) && WITHIN(at1, in1) && WITHIN(at2, in2);                   \
    in_plane = inside ? (at0 * in1 + at1) * in2 + at2 : 0;                               \
  }
#else
#define NEXT_SLICE \
  k_row += T_TK;   \
  left -= T_TK;
#endif

#define COLUMNS_OF_ALL (images * P)
#define COLUMN(j, at) const IDX_T i0 = image_of[j], n = at - i0 * P;
#define Y_AT ((((part * images + i0) * groups + i1) * M + m) * P + n)

__kernel SUB_GROUP __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void conv_gpu(OUT(float, y), IN(float, w), IN(float, x), const IDX_T M, const IDX_T P,
              const IDX_T K, const IDX_T C, const IDX_T plane, const IDX_T images,
              const IDX_T groups, const IDX_T slices, const IDX_T all WINDOW_INPUTS EPILOGUE_PARAMS) {
  GROUP_TILE
  const IDX_T both = get_global_id(2), part = both / groups, i1 = both - part * groups;
  const IDX_T first = part * slices, end = i_min(first + slices, all);
  __global const float *const weights =
      AT(w) + i1 * K * M + i_min(m0 + item % TILE_M, M - 1);
  const IDX_T own = i_min(n0 + item % TILE_N, images * P - 1);
  const IDX_T own_image = IMAGE_OF(own), position = own - own_image * P;
  __global const float *const image = AT(x) + (own_image * groups + i1) * C * plane;
#if S_WINDOW
  const IDX_T line = position / out2, sheet = line / out1;
  const IDX_T from2 = (position - line * out2) * stride2 - pad2;
  const IDX_T from1 = (line - sheet * out1) * stride1 - pad1, from0 = sheet * stride0 - pad0;
#endif
#if S_WINDOW == 1
  const IDX_T of_tap = (C + T_TK - 1) / T_TK, tap = first / of_tap;
  const IDX_T channel = (first - tap * of_tap) * T_TK;
  IDX_T k_row = tap * C + channel, left = C - channel, in_plane;
  IDX_T t2 = tap % kernel2, t1 = tap / kernel2 % kernel1, t0 = tap / kernel2 / kernel1;
  bool inside;
  FIND_TAP
#else
  IDX_T k_row = first * T_TK, left = K - k_row;
#endif
#if S_WINDOW == 0
  const bool inside = true;
  const IDX_T in_plane = position;
#elif S_WINDOW == 2
  // In uint, which wraps: only sums that are inside are used.
  const uint origin = ((uint)from0 * in1 + from1) * in2 + from2;
  __local int4 places[2][T_TK];  // in turns: one is read while the next one is written
  PREPARE(first)
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
#include "common/sum_slices.inc"
  IDX_T image_of[T_RN];
  EACH_ELEMENT(j, T_RN) image_of[j] = IMAGE_OF(n0 + PLACE(j, column, T_RN));
#include "common/store_tile.inc"
}
