// Channels-last 3 x 3 convolution, stride 1, float32, on CPUs, by Winograd's F(4 x 4, 3 x 3): each
// tile of 4 x 4 positions of y is computed from 6 x 6 positions of x. These are transformed to 36
// coefficients; each coefficient is multiplied by that of the transformed weights, as a matrix
// product over channels; and the products are transformed back to the 16 results.
// Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016.
//   x  read: [images, in1, in2] positions, x_pitch elements apart, of C channels
//   y  written: [images, out1, out2] positions, y_pitch elements apart, of N channels
//   w  read: transformed weights [coefficient][panel][C][T_NV * T_VW], output channels padded with
//      zeros to whole panels; with S_FEW_TILES untransformed, [panel][C][window element][T_NV *
//      T_VW], which are transformed here, `depth` channels at once
//   zeros   read in place of the padding: C zeros
//   tiles   number of tiles of all images;  tiles1, tiles2  tiles of an image along its two axes
//   room    scratch, `slot` elements per work-item: transformed windows [coefficient][tile][C,
//           rounded up to T_VW], products [coefficient][tile][span panels], transformed weights
//           [coefficient][depth][T_NV * T_VW]
//   pad1, pad2  padding before, along the two axes
// An item of work is a `block` of tiles by a `span` of panels. Work-group g of G, of one work-item,
// processes items g, g + G, g + 2 G, ….
//   T_MR, T_NV, T_VW  tiles, vectors and lanes per vector of a register tile of products
//   T_KU  unrolled steps of the loop over channels
//   S_N_WHOLE  1: N is a multiple of T_VW
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual),
//               described in matmul/gemm_cpu.cl; its variables: i0 is the image, i1 is 0, m the
//               position in the image, n the output channel
#ifndef T_VW
#define T_VW 8
#define T_NV 3
#define T_MR 4
#define T_KU 2
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/axes.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/tile.clh"
#include "common/finish.clh"
#include "common/widen.clh"
#include "common/panel_product.clh"
#include "common/windows.clh"
#define SIDE 4
#define REACH 6
#define PLACES_OF_TILE (REACH * REACH)
#define WINDOW_SIDE 3
#define TAPS (WINDOW_SIDE * WINDOW_SIDE)

// Interpolation points are 0, +-NEAR, +-FAR and infinity. With 1 and 2 the rounding error is twice
// as large.
#define NEAR 0.70710678f
#define FAR 1.41421356f
#define NEAR_2 0.5f
#define FAR_2 2.0f
#define NEAR_FAR_2 1.0f
#define OF_NEAR (0.5f / (NEAR_2 * (NEAR_2 - FAR_2)))
#define OF_FAR (0.5f / (FAR_2 * (FAR_2 - NEAR_2)))

// Transforms six vectors of a window, `step` apart.
#define TRANSFORM_WINDOW(to, from, step)                                     \
  {                                                                          \
    const F d0 = from[0], d1 = from[step], d2 = from[2 * step];              \
    const F d3 = from[3 * step], d4 = from[4 * step], d5 = from[5 * step];   \
    const F near = d4 - FAR_2 * d2, near_odd = NEAR * (d3 - FAR_2 * d1);     \
    const F far = d4 - NEAR_2 * d2, far_odd = FAR * (d3 - NEAR_2 * d1);      \
    to[0] = NEAR_FAR_2 * d0 - (NEAR_2 + FAR_2) * d2 + d4;                    \
    to[step] = near + near_odd;                                              \
    to[2 * step] = near - near_odd;                                          \
    to[3 * step] = far + far_odd;                                            \
    to[4 * step] = far - far_odd;                                            \
    to[5 * step] = NEAR_FAR_2 * d1 - (NEAR_2 + FAR_2) * d3 + d5;             \
  }

// Transforms six vectors of products, `step` apart, to four sums, `out` apart.
#define TRANSFORM_PRODUCTS(to, out, from, step)                              \
  {                                                                          \
    const F m1 = from[step], m2 = from[2 * step];                            \
    const F m3 = from[3 * step], m4 = from[4 * step];                        \
    const F near = m1 + m2, near_odd = NEAR * (m1 - m2);                     \
    const F far = m3 + m4, far_odd = FAR * (m3 - m4);                        \
    to[0] = from[0] + near + far;                                            \
    to[out] = near_odd + far_odd;                                            \
    to[2 * out] = NEAR_2 * near + FAR_2 * far;                               \
    to[3 * out] = NEAR_2 * near_odd + FAR_2 * far_odd + from[5 * step];      \
  }

// Transforms three vectors of weights, `step` apart, to six, `out` apart.
#define TRANSFORM_WEIGHTS(to, out, from, step)                               \
  {                                                                          \
    const F w0 = from[0], w1 = from[step], w2 = from[2 * step];              \
    const F near = OF_NEAR * (w0 + NEAR_2 * w2), near_odd = OF_NEAR * NEAR * w1; \
    const F far = OF_FAR * (w0 + FAR_2 * w2), far_odd = OF_FAR * FAR * w1;   \
    to[0] = w0 / NEAR_FAR_2;                                                 \
    to[out] = near + near_odd;                                               \
    to[2 * out] = near - near_odd;                                           \
    to[3 * out] = far + far_odd;                                             \
    to[4 * out] = far - far_odd;                                             \
    to[5 * out] = w2;                                                        \
  }

__kernel SINGLE_ITEM
void winograd_cpu(OUT(float, y), IN(float, x), IN(float, w), IN(float, zeros), OUT(float, room),
                  const IDX_T slot, const IDX_T C, const IDX_T N, const IDX_T x_pitch,
                  const IDX_T y_pitch, const IDX_T tiles,
                  const IDX_T tiles1, const IDX_T tiles2, const IDX_T block, const IDX_T span,
                  const IDX_T depth,
                  const IDX_T in1, const IDX_T in2, const IDX_T out1, const IDX_T out2,
                  const IDX_T pad1, const IDX_T pad2 EPILOGUE_PARAMS) {
  const IDX_T panels = (N + PANEL_WIDTH - 1) / PANEL_WIDTH;
  const IDX_T spans = (panels + span - 1) / span;
  const IDX_T items = (tiles + block - 1) / block * spans;
  const IDX_T deep = (C + T_VW - 1) / T_VW * T_VW, wide = span * PANEL_WIDTH;
  __global float *const windows = AT(room) + (IDX_T)get_global_id(0) * slot;
  __global float *const products = windows + PLACES_OF_TILE * block * deep;
  __global float *const weights = products + PLACES_OF_TILE * block * wide;
  const IDX_T i1 = 0;
  for (IDX_T item = get_global_id(0); item < items; item += get_global_size(0)) {
    const IDX_T first = item / spans * block;
    const IDX_T count = i_min(block, tiles - first);
    const IDX_T panel_first = item % spans * span;
    const IDX_T panel_end = i_min(panel_first + span, panels);
    for (IDX_T t = 0; t < count; ++t) {
      const IDX_T row = (first + t) / tiles2, image = row / tiles1;
      const IDX_T at1 = (row - image * tiles1) * SIDE - pad1;
      const IDX_T at2 = (first + t - row * tiles2) * SIDE - pad2;
      __global const float *const x_image = AT(x) + image * in1 * in2 * x_pitch;
      __global const float *from[PLACES_OF_TILE];
      for (IDX_T i = 0; i < PLACES_OF_TILE; ++i)
        from[i] = window_at(x_image, 0, at1 + i / REACH, at2 + i % REACH, 1, in1, in2, x_pitch,
                            AT(zeros));
      for (IDX_T c = 0; c < deep; c += T_VW) {
        F window[PLACES_OF_TILE], lines[PLACES_OF_TILE];
        if (C - c >= T_VW) {
#pragma unroll
          for (IDX_T i = 0; i < PLACES_OF_TILE; ++i) window[i] = LOAD_F(from[i] + c);
        } else {
          for (IDX_T i = 0; i < PLACES_OF_TILE; ++i)
            window[i] = load_lanes(from[i] + c, C - c, 0.0f);
        }
#pragma unroll
        for (IDX_T i = 0; i < REACH; ++i) TRANSFORM_WINDOW((lines + i), (window + i), REACH)
        __global float *to = windows + t * deep + c;
#pragma unroll
        for (IDX_T i = 0; i < REACH; ++i) {
          F line[REACH];
          TRANSFORM_WINDOW(line, (lines + i * REACH), 1)
#pragma unroll
          for (IDX_T j = 0; j < REACH; ++j) {
            STORE_F(to, line[j]);
            to += block * deep;
          }
        }
      }
    }
#if S_FEW_TILES
    for (IDX_T p = panel_first; p < panel_end; ++p)
      for (IDX_T c0 = 0; c0 < C; c0 += depth) {
        const IDX_T channels = i_min(depth, C - c0);
        __global const float *from = AT(w) + (p * C + c0) * (TAPS * PANEL_WIDTH);
        const size_t next = (size_t)(from + channels * (TAPS * PANEL_WIDTH));
        for (IDX_T i = 0; i < channels * PANEL_WIDTH; i += T_VW) {
          F taps[TAPS], lines[WINDOW_SIDE * REACH], turned[REACH];
          __global const float *const at =
              from + i / PANEL_WIDTH * (TAPS * PANEL_WIDTH) + i % PANEL_WIDTH;
#pragma unroll
          for (IDX_T t = 0; t < TAPS; ++t) taps[t] = LOAD_F(at + t * PANEL_WIDTH);
#pragma unroll
          for (IDX_T t = 0; t < WINDOW_SIDE; ++t)
            TRANSFORM_WEIGHTS((lines + t), WINDOW_SIDE, (taps + t), WINDOW_SIDE)
          __global float *to = weights + i;
#pragma unroll
          for (IDX_T t = 0; t < REACH; ++t) {
            TRANSFORM_WEIGHTS(turned, 1, (lines + t * WINDOW_SIDE), 1)
#pragma unroll
            for (IDX_T u = 0; u < REACH; ++u) {
              STORE_F(to, turned[u]);
              to += depth * PANEL_WIDTH;
            }
          }
        }
        for (IDX_T place = 0; place < PLACES_OF_TILE; ++place) {
          __global const float *const panel = weights + place * depth * PANEL_WIDTH;
          for (IDX_T m0 = 0; m0 < count; m0 += T_MR) {
            F tile[T_MR * T_NV];
            multiply_tile(tile, windows + place * block * deep + c0, deep, m0, count, channels,
                          panel, m0 ? (size_t)panel : next + place * (depth * PANEL_WIDTH),
                          m0 ? 0 : PANEL_WIDTH);
            __global float *to =
                products + (place * block + m0) * wide + (p - panel_first) * PANEL_WIDTH;
            for (IDX_T i = 0; i < i_min(T_MR, count - m0); ++i) {
              for (IDX_T j = 0; j < T_NV; ++j) {
                F sum = tile[i * T_NV + j];
                if (c0) sum += LOAD_F(to + j * T_VW);
                STORE_F(to + j * T_VW, sum);
              }
              to += wide;
            }
          }
        }
      }
#else
    for (IDX_T place = 0; place < PLACES_OF_TILE; ++place)
      for (IDX_T p = panel_first; p < panel_end; ++p) {
        __global const float *const panel = AT(w) + (place * panels + p) * C * PANEL_WIDTH;
        const size_t next = (size_t)(panel + C * PANEL_WIDTH);
        for (IDX_T m0 = 0; m0 < count; m0 += T_MR) {
          F tile[T_MR * T_NV];
          multiply_tile(tile, windows + place * block * deep, deep, m0, count, C, panel,
                        m0 ? (size_t)panel : next, m0 ? 0 : PANEL_WIDTH * sizeof(float));
          __global float *to =
              products + (place * block + m0) * wide + (p - panel_first) * PANEL_WIDTH;
          for (IDX_T i = 0; i < i_min(T_MR, count - m0); ++i) {
            for (IDX_T j = 0; j < T_NV; ++j) STORE_F(to + j * T_VW, tile[i * T_NV + j]);
            to += wide;
          }
        }
      }
#endif
    const IDX_T n_first = panel_first * PANEL_WIDTH;
    const IDX_T n_end = i_min(panel_end * PANEL_WIDTH, N);
    for (IDX_T t = 0; t < count; ++t) {
      const IDX_T row = (first + t) / tiles2, i0 = row / tiles1;
      const IDX_T at1 = (row - i0 * tiles1) * SIDE, at2 = (first + t - row * tiles2) * SIDE;
      const IDX_T height = i_min(SIDE, out1 - at1), width = i_min(SIDE, out2 - at2);
      for (IDX_T n = n_first; n < n_end; n += T_VW) {
        F found[PLACES_OF_TILE], lines[SIDE * REACH], sums[SIDE * SIDE];
        __global const float *from = products + t * wide + n - n_first;
#pragma unroll
        for (IDX_T i = 0; i < PLACES_OF_TILE; ++i) {
          found[i] = LOAD_F(from);
          from += block * wide;
        }
#pragma unroll
        for (IDX_T i = 0; i < REACH; ++i)
          TRANSFORM_PRODUCTS((lines + i), REACH, (found + i), REACH)
#pragma unroll
        for (IDX_T i = 0; i < SIDE; ++i)
          TRANSFORM_PRODUCTS((sums + i * SIDE), 1, (lines + i * REACH), 1)
        for (IDX_T i = 0; i < height; ++i)
          for (IDX_T j = 0; j < width; ++j) {
            const IDX_T m = (at1 + i) * out2 + at2 + j;
            __global float *const y_row = AT(y) + (i0 * out1 * out2 + m) * y_pitch;
            FINISH_VECTOR(sums[i * SIDE + j])
          }
      }
    }
  }
}
