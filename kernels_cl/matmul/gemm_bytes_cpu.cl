// y = epilogue(A B) for CPU devices by 8-bit products with int32 sums (common/byte_dots.clh). The
// two batch axes have indices i0 and i1 (below d1); batch = i0 * d1 + i1. Strides are in elements.
//   a  read: float32, quantized here to integer levels `low` to `high` of scale `scale`; or, if A_T
//      is defined (char or uchar), levels already, of zero point a_zero. Element (m, k) at i0 *
//      a_s0 + i1 * a_s1 + m * a_row + k
//   b  read: per panel of 32 columns (clrt/kernels/gemm_int8_cpu.py) uint8 levels [K /
//      4][column][4]; then per column int32 MIDDLE times the sum over k of (level - zero point),
//      int32 its zero point, and float32 the scale of its sums
//   y  written: [batch, M, N] float32; if A_T is defined the int32 sums, without scales
//   records  scratch: quantized rows of A, stored as level - middle, to fit int8. MIDDLE in b is
//            low + 128; if A_T is defined it is 1
// A work-group of one work-item computes `height` rows, at most MOST_ROWS, by `columns` columns of
// y: it quantizes its rows once, into its share of `records`, then multiplies them by its panels
// tile by tile.
//   A_MIDDLE  defined if a has levels: their middle, 0 for char, 128 for uchar
//   A_ZERO    defined, if a has levels: a_zero is an input; otherwise their zero point is 0
//   S_N_WHOLE   1: N is a multiple of T_VW for all shapes, so that no vector is partial
//   EPILOGUE_*  PARAMS, LOADS, BODY, RESULT: the generated epilogue (bias, activation, residual)
//               applied to each sum, described in matmul/gemm_cpu.cl
#ifndef T_VW
#define T_VW 8
#endif
#ifndef MOST_ROWS
#define MOST_ROWS 64
#endif
#define VW T_VW
#define T_NV (BYTE_WIDTH / T_VW)
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/widen.clh"
#include "common/byte_records.clh"
#include "common/finish.clh"
#define TILE_ROWS 8
#ifdef A_T
#ifdef A_ZERO
#define A_LEVELS , IN(A_T, a_zero)
#define SHIFT ((I)(A_MIDDLE - (int)*AT(a_zero)))
#else
#define A_LEVELS
#define SHIFT ((I)(A_MIDDLE))
#endif
#define Y_T int
#define OF_COLUMN(sum, j) AS_F(sum + SHIFT * starts[j])
#else
#define A_T float
#define A_LEVELS , const float scale, const float low, const float high
#define Y_T float
#define OF_COLUMN(sum, j) (WIDE_AS(float, sum + starts[j]) * scales[j])
#endif

#ifdef A_MIDDLE
#define STORE_ROW(to, rows, x) keep_levels(to, rows, x, K)
#else
#define STORE_ROW(to, rows, x) round_row(to, rows, x, K, scale, low, high)
// Quantizes the K elements x of a row into the record of a tile of `rows` rows (`to`: its first
// level), padded with 0; returns the sum of the stored levels.
static inline int round_row(__global uchar *to, const IDX_T rows, __global const float *x, const IDX_T K,
                            const float scale, const float low, const float high) {
  const I middle = (I)((int)low + 128);
  I sums = (I)(0);
  for (IDX_T k = 0; k < K; k += VW) {
    const IDX_T count = i_min(K - k, VW);
    const F v = count == VW ? LOAD_F(x + k) : load_lanes(x + k, count, 0.0f);
    I levels;
    c_round_to_scale(v, (F)(scale), (F)(low), (F)(high), &levels);
    levels -= middle;
    for (IDX_T lane = count; lane < VW; ++lane) ((int *)&levels)[lane] = 0;
    sums += levels;
    keep_places(to + k * rows, rows, WIDE_AS(char, levels), count);
  }
  return sum_of(sums);
}
#endif

__kernel SINGLE_ITEM
void gemm_bytes_cpu(OUT(Y_T, y), IN(A_T, a), IN(uchar, b), OUT(uchar, records), const IDX_T M,
                    const IDX_T N, const IDX_T K, const IDX_T height, const IDX_T columns,
                    const IDX_T d1, const IDX_T a_s0, const IDX_T a_s1,
                    const IDX_T a_row A_LEVELS EPILOGUE_PARAMS) {
  const IDX_T groups = (K + BYTE_PLACES - 1) / BYTE_PLACES, depth = groups * BYTE_PLACES;
  const IDX_T spans = (N + columns - 1) / columns, stripes = (M + height - 1) / height;
  const IDX_T at = get_group_id(0);
  const IDX_T batch = at / (spans * stripes), i0 = batch / d1, i1 = batch % d1;
  const IDX_T m_first = at / spans % stripes * height, n_first = at % spans * columns;
  const IDX_T rows = i_min(height, M - m_first), n_end = i_min(n_first + columns, N);
  __global uchar *const own = AT(records) + at * height * depth;
  __global const A_T *const a_rows = AT(a) + i0 * a_s0 + i1 * a_s1 + m_first * a_row;
  int row_sums[MOST_ROWS];
  for (IDX_T r = 0; r < rows;) {
    const IDX_T count = tile_rows(rows - r);
    for (IDX_T i = 0; i < count; ++i)
      row_sums[r + i] =
          STORE_ROW(own + r * depth + i * BYTE_PLACES, count, a_rows + (r + i) * a_row);
    r += count;
  }
  for (IDX_T n0 = n_first; n0 < n_end; n0 += BYTE_WIDTH) {
    __global const uchar *const panel =
        AT(b) + n0 / BYTE_WIDTH * (groups * BYTE_GROUP + 3 * BYTE_WIDTH * sizeof(int));
    __global const I *const starts = (__global const I *)(panel + groups * BYTE_GROUP);
    __global const I *const zeros = starts + T_NV;
    __global const F *const scales = (__global const F *)(zeros + T_NV);
    for (IDX_T r = 0; r < rows;) {
      I tile[TILE_ROWS * T_NV];
      const IDX_T count = tile_rows(rows - r);
      __global const uchar *const part = own + r * depth;
      multiply_bytes((int *)tile, panel, part, count, groups);
      for (IDX_T i = 0; i < count; ++i) {
        const IDX_T m = m_first + r + i;
        const I row_sum = (I)(row_sums[r + i]);
        __global float *const y_row = (__global float *)AT(y) + (batch * M + m) * N;
        for (int j = 0; j < T_NV; ++j) {
          const IDX_T n = n0 + j * T_VW;
          if (n >= N) break;
          const I sum = tile[i * T_NV + j] - zeros[j] * row_sum;
          FINISH_VECTOR(OF_COLUMN(sum, j))
        }
      }
      r += count;
    }
  }
}
