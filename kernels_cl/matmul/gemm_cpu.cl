// y = epilogue(A B), float32, for CPU devices: a work-item keeps a tile of T_MR rows by T_NV
// vectors of T_VW columns in registers. The two batch axes have indices i0 and i1 (below d1); batch
// = i0 * d1 + i1. Strides are in elements.
//   a  read in place: float32, element (m, k) at i0 * a_s0 + i1 * a_s1 + m * a_row + k
//   b  read: B_T [panel][K][T_NV * T_VW], columns padded with zeros to whole panels; matrices at i0
//      * b_s0 + i1 * b_s1
//   y  written: float32 [batch, M] rows of N elements, y_pitch elements apart (N if FUSE_NORM or
//      FUSED_GEMM is set)
// One work-group of one work-item per (stripe of `height` blocks of T_MR rows, panel of B), in one
// dimension: runtimes that split several would break their order. They are ordered by chunks of
// T_MC blocks, whose rows of A stay in the cache; within a chunk by panels of B, and within a panel
// by the chunk's stripes.
// Generated epilogue, the operations that follow the product (bias, activation, residual); its
// macros have the same meaning in all matrix products and convolutions:
//   EPILOGUE_PARAMS  kernel parameters of its operands x1, x2, …: buffer, offset, and the strides
//                    x1_s0, x1_s1 of the batch indices and x1_sm of rows
//   EPILOGUE_ARGS    the same parameters as call arguments
//   EPILOGUE_LOADS   declares v1, v2, …, the operands' elements for row m, column n and batch (i0,
//                    i1)
//   EPILOGUE_BODY    declares a variable per step, computed from v0, the product, and v1, v2, …
//   EPILOGUE_RESULT  the variable to store in y
// Other macros:
//   B_T, B_STORAGE  type and storage of B's elements: plain, half or bfloat16 (common/widen.clh)
//   S_N_WHOLE  1: N is a multiple of T_VW for all shapes, so that no vector is partial
//   FUSE_NORM  1: rows of y are also normalized into z (common/normalize_row.clh). A work-group
//              then has all panels; or, if rows are too few for that, one launch multiplies, panel
//              by panel (`multiplies` 1), and a second one normalizes (`normalizes` 1)
//   FUSED_GEMM  1, for few rows: work-groups have all rows and `span` panels, and also multiply
//               their columns of y by next_b, the B of the product that reads y
//               (common/next_product.clh)
//   USE_AMX, USE_INT16_DOT  1, for many rows: uses the CPU's matrix unit
//                      (common/amx_split_gemm.clh), or its int16 dot products
//                      (common/int16_split_gemm.clh), if the argument `columns` is not 0
//   T_KU  unrolled steps of k;  T_KC, T_UP  k, and panels, that are packed at once for such a unit
#ifndef T_MR
#define T_MR 4
#define T_NV 3
#define T_VW 8
#define T_MC 32
#define T_KU 2
#define T_KC 768
#define T_UP 4
#endif
#ifndef FUSE_NORM
#define FUSE_NORM 0
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/math.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/tile.clh"
#include "common/finish.clh"
#include "common/widen.clh"
#include "common/panel_product.clh"
#include "common/next_product.clh"
#define HAS_UNIT (USE_AMX || USE_INT16_DOT)
#if HAS_UNIT
#if USE_AMX
#include "common/amx_split_gemm.clh"
#else
#include "common/int16_split_gemm.clh"
#endif
#include "common/split_gemm.clh"
// If `columns` is not 0, y is divided into `pieces` of `height` rows by `columns` columns, which
// the work-groups process in turn. Each has `slot` 32-bit words of scratch in `words`: packed A,
// from b_at on T_UP packed panels of B, from sums_at on the sums. sums_row is 0, or, if K has
// several chunks of T_KC, the row length in floats of a piece's sums, which are then all kept.
#define MMA_INPUTS                                                              \
  , OUT(uint, words), const IDX_T slot, const IDX_T b_at, const IDX_T sums_at,   \
      const IDX_T sums_row, const IDX_T pieces, const IDX_T columns
#else
#define MMA_INPUTS
#endif

#if FUSE_NORM
#include "common/normalize_row.clh"
#define ROW_INPUTS NORM_INPUTS, const IDX_T multiplies, const IDX_T normalizes
#define RESULTS INOUT(float, y)
#else
#define ROW_INPUTS
#define RESULTS OUT(float, y)
#define multiplies 1
#define normalizes 0
#endif

#if HAS_UNIT
// gemm_cpu for many rows, by the CPU's matrix unit or int16 dot products: computes the pieces of y
// (MMA_INPUTS) of work-item `item` of `items`. The other parameters are those of gemm_cpu. Not
// inlined: inlined it would take registers from the loops of the other path.
__attribute__((noinline))
static void multiply_by_unit(const IDX_T item, const IDX_T items, OUT(float, y), IN(float, a),
                             IN(B_T, b), const IDX_T M, const IDX_T N, const IDX_T K, const IDX_T height, const IDX_T d1, const IDX_T a_s0,
                             const IDX_T a_s1, const IDX_T a_row, const IDX_T b_s0,
                             const IDX_T b_s1, const IDX_T y_pitch EPILOGUE_PARAMS MMA_INPUTS) {
  MMA_START
  const IDX_T group = T_UP * PANEL_WIDTH;
  __global uint *const a_parts = AT(words) + item * slot;
  __global uint *const b_parts = a_parts + b_at;
  const IDX_T stripes = (M + height - 1) / height;
  const IDX_T spans = (N + columns - 1) / columns;
  for (IDX_T piece = item; piece < pieces; piece += items) {
    const IDX_T batch = piece / (stripes * spans);
    const IDX_T i0 = batch / d1;
    const IDX_T i1 = batch % d1;
    const IDX_T m_first = piece / spans % stripes * height;
    const IDX_T rows = i_min(height, M - m_first);
    const IDX_T n_first = piece % spans * columns;
    const IDX_T n_end = i_min(n_first + columns, N);
    __global const float *const a_rows = AT(a) + i0 * a_s0 + i1 * a_s1 + m_first * a_row;
    __global const B_T *const b_batch = AT(b) + i0 * b_s0 + i1 * b_s1;
    for (IDX_T k0 = 0; k0 < K; k0 += T_KC) {
      const IDX_T depth = i_min(T_KC, K - k0);
      const IDX_T steps = (depth + MMA_K - 1) / MMA_K;
      split_rows(a_parts, a_rows + k0, a_row, rows, depth);
      for (IDX_T n_group = n_first; n_group < n_end; n_group += group) {
        const IDX_T panels = (i_min(group, n_end - n_group) + PANEL_WIDTH - 1) / PANEL_WIDTH;
        const IDX_T vectors = panels * T_NV;
        const IDX_T pairs = (vectors + 1) / 2;
        const IDX_T wide = pairs * MMA_COLUMNS;
        split_panels(b_parts, b_batch + n_group * K + k0 * PANEL_WIDTH, vectors, K, depth);
        for (IDX_T m_part = 0; m_part < rows; m_part += MMA_ROWS) {
          __global float *const sums =
              (__global float *)(a_parts + sums_at) +
              (sums_row ? m_part * sums_row + (n_group - n_first) * MMA_ROWS : 0);
          __global const uint *const a_part = a_parts + m_part / MMA_ROWS * steps * MMA_A_STEP;
          multiply_pairs(sums, wide, a_part, b_parts, pairs, steps, k0 > 0 MMA_USED);
          if (k0 + depth < K) continue;
          const IDX_T end = i_min(m_part + MMA_ROWS, rows);
          for (IDX_T first = m_part; first < end; first += T_MR) {
            const IDX_T count = i_min(T_MR, end - first);
            for (IDX_T n0 = n_group; n0 < i_min(n_group + group, n_end); n0 += PANEL_WIDTH) {
              F tile[T_MR * T_NV];
              load_sums(tile, sums + (first - m_part) * wide + n0 - n_group, wide, count);
              if (has_overflow(tile, count * T_NV)) {
                __global const B_T *const panel = b_batch + n0 * K;
                multiply_plainly(tile, a_rows + first * a_row, a_row, count, K, panel);
              }
              for (IDX_T i = 0; i < count; ++i) {
                const IDX_T m = m_first + first + i;
                __global float *const y_row = AT(y) + (batch * M + m) * y_pitch;
                for (int j = 0; j < T_NV; ++j) FINISH(i, j)
              }
            }
          }
        }
      }
    }
  }
  MMA_END
}
#endif

__kernel SINGLE_ITEM
void gemm_cpu(RESULTS, IN(float, a), IN(B_T, b), const IDX_T M, const IDX_T N,
              const IDX_T K, const IDX_T height, const IDX_T d1, const IDX_T a_s0,
              const IDX_T a_s1, const IDX_T a_row, const IDX_T b_s0,
              const IDX_T b_s1, const IDX_T y_pitch EPILOGUE_PARAMS ROW_INPUTS FUSED_GEMM_PARAMS MMA_INPUTS) {
#if HAS_UNIT
  if (columns) {
    multiply_by_unit(get_global_id(0), get_global_size(0), y_buffer, y_offset, a_buffer, a_offset, b_buffer, b_offset, M, N, K, height, d1,
                     a_s0, a_s1, a_row, b_s0, b_s1, y_pitch EPILOGUE_ARGS, words_buffer, words_offset, slot,
                     b_at, sums_at, sums_row, pieces, columns);
    return;
  }
#endif
  const IDX_T width = PANEL_WIDTH * span;
  const IDX_T blocks = (M + T_MR - 1) / T_MR;
  const IDX_T stripes = (blocks + height - 1) / height;
  const IDX_T panels = normalizes ? 1 : (N + width - 1) / width;
#include "common/product_rows.inc"
  const IDX_T n_first = in_chunk / chunk_stripes * width;
  const IDX_T n_end = i_min(normalizes ? multiplies * N : n_first + width, N);
  const IDX_T i0 = batch / d1;
  const IDX_T i1 = batch % d1;
  __global const float *const a_batch = AT(a) + i0 * a_s0 + i1 * a_s1;
  __global const B_T *const b_batch = AT(b) + i0 * b_s0 + i1 * b_s1;
#if FUSED_GEMM
  __global const B_T *const behind = next_n ? AT(next_b) + n_first * PANEL_WIDTH : 0;
#else
  __global const B_T *const behind = 0;
#endif
  __global float *const y_batch = AT(y) + batch * M * y_pitch;
#include "common/product_columns.inc"
#if FUSED_GEMM
  if (next_n) {
    multiply_part(AT(parts), n_first / width, M, 0, M, AT(y) + n_first, N, n_first,
                  n_end - n_first, N, AT(next_b), next_n);
  }
#endif
#if FUSE_NORM
  if (normalizes) {
    const IDX_T last = i_min(end * T_MR, M);
    for (IDX_T m = first * T_MR; m < last; ++m) {
      __global float *const y_row = AT(y) + m * N;
      // Without `multiplies`, A is K partial products [K][M][a_row] of a product that is split over
      // K.
      const IDX_T n_parts = multiplies || K == 0 ? 0 : N;
      for (IDX_T n0 = 0; n0 < n_parts; n0 += T_VW) {
        __global const float *const part = AT(a) + m * a_row + n0;
        F tile[1] = {LOAD_F(part)};
        for (IDX_T k = 1; k < K; ++k) tile[0] += LOAD_F(part + k * M * a_row);
        FINISH(0, 0)
      }
      NORMALIZE(m * N, N);
    }
  }
#endif
}
