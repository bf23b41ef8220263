// y = softmax(scale * Q K^T + mask) V, float32, on CPU devices: online softmax over blocks of keys.
//   q, k, v  read in place: S_D (v: S_DV) contiguous elements per head; strides in elements of
//            batch (q_batch, …), head (_head) and query or key (_step). `group` heads of q share a
//            head of k and v
//   y        written: float32 [batch, queries, heads, S_DV]
//   mask, MASK, CAUSAL, …  options described in common/attention.clh
// One work-group of one work-item per (block of queries, `span` heads, batch). A block has T_VW *
// T_NQ queries, or T_VW at the end; span is 1 without FUSED_GEMM. Vector lanes hold queries:
// elements of K and V are broadcast, and only small blocks of Q and of the result are transposed.
//   T_VW        lanes per vector;  T_NQ  vectors of queries
//   T_MK, T_MV  keys, and columns of V, per register tile
//   T_KB        keys per block, a multiple of T_MK
//   FUSED_GEMM  1, for few queries: a work-item also multiplies its heads of y by the matrix B of
//               the product that reads y (common/next_product.clh), in tiles of T_MR rows by T_NV
//               vectors
//   INLINE_PROJECTION  1: a work-item first computes the columns of q, k and v of its heads, into
//                      `projected`: the product x project_b with a generated epilogue
//                      (common/finish.clh)
#include "common/base.clh"
#include "common/attention.clh"
#ifndef T_VW
#define T_VW 8
#define T_NQ 3
#define T_MK 4
#define T_MV 4
#define T_KB 64
#endif
#define VW T_VW
#if T_KB % T_MK
#error "T_KB must be a multiple of T_MK: the last tile is stored whole"
#endif
#include "common/math.clh"
#include "common/repeat.clh"
#include "common/scalar.clh"
#include "common/next_product.clh"
#ifndef INLINE_PROJECTION
#define INLINE_PROJECTION 0
#endif
#if INLINE_PROJECTION
#include "common/finish.clh"
// Parameters of the projection: projected [queries, columns] of q, k and v, x [queries, depth],
// packed project_b [panel][depth][T_NV * T_VW]. With depth 0, q, k and v have been computed before.
#define INLINE_PROJECTION_PARAMS \
  , OUT(float, projected), IN(float, x), IN(B_T, project_b), const IDX_T depth EPILOGUE_PARAMS
#else
#define INLINE_PROJECTION_PARAMS
#endif

#if MASK_BOOL
#define MASK_T uchar
#define MASK_VALUE(m) ((m) ? 0.0f : -INFINITY)
#else
#define MASK_T float
#define MASK_VALUE(m) (m)
#endif
#if MASK
#define MASK_INPUT , IN(MASK_T, mask)
#define MASK_POINTER , __global const MASK_T *mask
#define MASK_ROWS , AT(mask) + batch * mask_batch + head * mask_head
#else
#define MASK_INPUT
#define MASK_POINTER
#define MASK_ROWS
#endif

// Columns of the result, rounded up to whole tiles; those past S_DV are zeros and are not stored.
#define DV (((S_DV) + T_MV - 1) / T_MV * T_MV)

// Prefetch distance: rows of a merged projection are pages apart, which hardware does not prefetch.
#define AHEAD 16
#define PREFETCH_ROW(row, columns) \
  for (int c = 0; c < columns; c += 16) PREFETCH((row) + c);

typedef float4 __attribute__((aligned(4))) F4_UNALIGNED;

// Reads `width` rows of `columns` elements transposed: to[c * width + r] =
// from[min(r, last) * step + c]. Row r starts at r * step; rows after `last` repeat it. `width` is
// a multiple of 4.
static inline void read_transposed(float *to, const int width, __global const float *from,
                                   const IDX_T step, const IDX_T last, const IDX_T columns) {
  for (int r = 0; r < width; r += 4) {
    __global const float *r0 = from + i_min(r, last) * step;
    __global const float *r1 = from + i_min(r + 1, last) * step;
    __global const float *r2 = from + i_min(r + 2, last) * step;
    __global const float *r3 = from + i_min(r + 3, last) * step;
    IDX_T c = 0;
    for (; c + 4 <= columns; c += 4) {
      const float4 a = *(__global const F4_UNALIGNED *)(r0 + c);
      const float4 b = *(__global const F4_UNALIGNED *)(r1 + c);
      const float4 d = *(__global const F4_UNALIGNED *)(r2 + c);
      const float4 e = *(__global const F4_UNALIGNED *)(r3 + c);
      float4 *out = (float4 *)(to + c * width + r);
      out[0] = (float4)(a.x, b.x, d.x, e.x);
      out[width / 4] = (float4)(a.y, b.y, d.y, e.y);
      out[width / 2] = (float4)(a.z, b.z, d.z, e.z);
      out[width / 4 * 3] = (float4)(a.w, b.w, d.w, e.w);
    }
    for (; c < columns; ++c)
      *(float4 *)(to + c * width + r) = (float4)(r0[c], r1[c], r2[c], r3[c]);
  }
}

// Writes `rows` rows of `columns` elements, the transpose of `from`: to[r * step + c] =
// from[c * width + r].
static inline void write_transposed(__global float *to, const IDX_T step, const float *from,
                                    const int width, const int rows, const int columns) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) {
    __global float *out = to + r * step;
    int c = 0;
    for (; c + 4 <= columns; c += 4) {
      const float4 *in = (const float4 *)(from + c * width + r);
      const float4 a = in[0], b = in[width / 4], d = in[width / 2], e = in[width / 4 * 3];
      *(__global F4_UNALIGNED *)(out + c) = (float4)(a.x, b.x, d.x, e.x);
      *(__global F4_UNALIGNED *)(out + step + c) = (float4)(a.y, b.y, d.y, e.y);
      *(__global F4_UNALIGNED *)(out + 2 * step + c) = (float4)(a.z, b.z, d.z, e.z);
      *(__global F4_UNALIGNED *)(out + 3 * step + c) = (float4)(a.w, b.w, d.w, e.w);
    }
    for (; c < columns; ++c) {
      for (int i = 0; i < 4; ++i) out[i * step + c] = from[c * width + r + i];
    }
  }
  for (; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) to[r * step + c] = from[c * width + r];
  }
}

#if MASK == 2
// Reads the mask of `width` queries and `count` keys as numbers to add to scores:
// to[key * width + query]; a bool mask becomes 0 or -infinity. In `from`, queries are `step`
// elements apart and keys `key_step`. Queries after `last` repeat it; the last key is repeated up
// to a multiple of T_MK keys.
static inline void read_mask(float *to, const int width, __global const MASK_T *from,
                             const IDX_T step, const IDX_T key_step, const IDX_T last,
                             const IDX_T count) {
#if !MASK_BOOL
  if (key_step == 1)
    read_transposed(to, width, from, step, last, count);
  else
#endif
    for (int r = 0; r < width; ++r) {
      __global const MASK_T *row = from + i_min(r, last) * step;
      for (IDX_T j = 0; j < count; ++j) to[j * width + r] = MASK_VALUE(row[j * key_step]);
    }
  for (IDX_T j = count; j % T_MK; ++j) {
    for (int r = 0; r < width; ++r) to[j * width + r] = to[(count - 1) * width + r];
  }
}
#endif

#define COLS(X, r) CAT(VECTORS_, NV)(X, r)
#define EACH(X) COLS(X, _)

#define CLEAR(r, n) F acc##r##_##n = (F)(0.0f);
#define ACCUMULATE(r, n) acc##r##_##n = a * b##n + acc##r##_##n;

#define KEY_ROW(r) \
  const IDX_T j##r = i_min(key + r, count - 1); \
  __global const float *row##r = keys + j##r * k_step; \
  COLS(CLEAR, r)
#define LOAD_QUERY(r, n) const F b##n = query[d * NV + n];
#define KEY_STEP(r) { const F a = (F)(row##r[d]); COLS(ACCUMULATE, r) }

#if SOFTCAP
#define CAPPED(r, n) ((F)(softcap) * c_tanh(acc##r##_##n / (F)(softcap)))
#else
#define CAPPED(r, n) acc##r##_##n
#endif
#if MASK == 1
#define ADD_MASK(r) const F m = (F)(MASK_VALUE(masks[j##r * mask_key]));
#define MASKED(r, n) (CAPPED(r, n) + m)
#elif MASK == 2
#define ADD_MASK(r)
#define MASKED(r, n) (CAPPED(r, n) + score[(key + r) * NV + n])
#else
#define ADD_MASK(r)
#define MASKED(r, n) CAPPED(r, n)
#endif
#if CAUSAL
#if WINDOW
#define BEHIND_WINDOW(r, n, s) \
  PICK(index##n - (I)(left_window) <= (I)(first_key + j##r), s, (F)(-INFINITY))
#else
#define BEHIND_WINDOW(r, n, s) (s)
#endif
#define VISIBLE(r, n, s) \
  PICK((I)(first_key + j##r) <= index##n, BEHIND_WINDOW(r, n, s), (F)(-INFINITY))
#else
#define VISIBLE(r, n, s) (s)
#endif
#define STORE_SCORE(r, n) { \
    const F s = MASKED(r, n); \
    const F visible = VISIBLE(r, n, s); \
    score[(key + r) * NV + n] = visible; \
    top##n = PICK(visible > top##n, visible, top##n); }
#define SCORE_ROW(r) { ADD_MASK(r) COLS(STORE_SCORE, r) }

#define COLUMN(r) COLS(SCALED, r)
#define SCALED(r, n) F acc##r##_##n = result[(d + r) * NV + n] * rescale##n;
#define LOAD_WEIGHT(r, n) const F b##n = score[j * NV + n];
#define VALUE_STEP(r) { const F a = (F)(value[j * DV + d + r]); COLS(ACCUMULATE, r) }
#define STORE_COLUMN(r, n) result[(d + r) * NV + n] = acc##r##_##n;
#define STORE_RESULT(r) COLS(STORE_COLUMN, r)

// The running maximum starts at the lowest finite number, not at -inf: a row of only -inf then has
// the sum 0 (0/0 = NaN as in ONNX), and -inf - -inf never occurs.
#define START(r, n) F top##n = (F)(-FLT_MAX), sum##n = (F)(0.0f);
#define KEEP_TOP(r, n) const F before##n = top##n;
#define RESCALE(r, n) const F rescale##n = exp_below_0(before##n - top##n); sum##n = sum##n * rescale##n;
#define WEIGHT(r, n) { \
    const F p = exp_below_0(score[j * NV + n] - top##n); \
    score[j * NV + n] = p; \
    sum##n = sum##n + p; }
#define INVERSE(r, n) \
  const F inverse##n = PICK(sum##n == (F)(0.0f), (F)(of_no_keys), (F)(1.0f) / sum##n);
#define NORMALIZE(r, n) result[d * NV + n] = result[d * NV + n] * inverse##n;
#define INDEX(r, n) const I index##n = lanes[n];

#define NV 1
#define BLOCK attend_narrow
#include "common/attention_block.inc"
#undef NV
#undef BLOCK
#define NV T_NQ
#define BLOCK attend_wide
#include "common/attention_block.inc"

__kernel SINGLE_ITEM
void fused_attention_cpu(OUT(float, y), IN(float, q), IN(float, k),
                         IN(float, v) MASK_INPUT LENGTHS_INPUT, const IDX_T queries, const IDX_T key_count, const IDX_T heads,
                         const IDX_T group, const IDX_T q_batch, const IDX_T q_head,
                         const IDX_T q_step, const IDX_T k_batch, const IDX_T k_head,
                         const IDX_T k_step, const IDX_T v_batch, const IDX_T v_head,
                         const IDX_T v_step, const IDX_T mask_batch, const IDX_T mask_head,
                         const IDX_T mask_query, const IDX_T mask_key,
                         const float scale, const IDX_T left_window,
                         const float softcap FUSED_GEMM_PARAMS INLINE_PROJECTION_PARAMS) {
  const IDX_T first = get_group_id(0) * (VW * T_NQ);
  const IDX_T first_head = get_group_id(1) * span;
  const IDX_T head_end = i_min(first_head + span, heads);
  const IDX_T batch = get_group_id(2);
  const IDX_T keys = KEYS_OF(batch);
  const IDX_T y_step = heads * S_DV;
  const IDX_T behind_block = first + VW * T_NQ;
#if INLINE_PROJECTION
  if (depth) {
    const IDX_T M = queries, N = q_step, y_pitch = N, K = depth, a_row = depth, i0 = 0, i1 = 0;
    const IDX_T first = 0, end = (M + T_MR - 1) / T_MR;
    const IDX_T first_kv = first_head / group, kv_count = (head_end - first_head) / group;
    const IDX_T starts[] = {q_offset - projected_offset + first_head * S_D,
                            k_offset - projected_offset + first_kv * S_D,
                            v_offset - projected_offset + first_kv * S_DV};
    const IDX_T counts[] = {(head_end - first_head) * S_D, kv_count * S_D, kv_count * S_DV};
    __global const float *const a_batch = AT(x);
    __global const B_T *const b_batch = AT(project_b);
    __global float *const y_batch = AT(projected);
    for (int part = 0; part < 3; ++part) {
      const IDX_T n_first = starts[part], n_end = n_first + counts[part];
      __global const B_T *const behind =
          part < 2 ? b_batch + starts[part + 1] * K : AT(next_b) + first_head * S_DV * PANEL_WIDTH;
#include "common/product_columns.inc"
    }
  }
#endif
  for (IDX_T head = first_head; head < head_end; ++head) {
    const IDX_T kv_head = head / group;
    __global const float *const q_head_rows = AT(q) + batch * q_batch + head * q_head;
    // Work-items of a thread run in order: prefetch the next one's queries, of this or the next
    // head.
    __global const float *const next_q =
        q_head_rows + (behind_block < queries ? behind_block * q_step : q_head);
#define ATTEND(block)                                                                          \
  block(AT(y) + batch * queries * y_step + head * S_DV, q_head_rows,                           \
        AT(k) + batch * k_batch + kv_head * k_head,                                            \
        AT(v) + batch * v_batch + kv_head * v_head MASK_ROWS, next_q, first, queries,          \
        keys, q_step, k_step, v_step, y_step, mask_query, mask_key, scale, left_window, softcap)
    if (queries - first <= VW) {
      ATTEND(attend_narrow);
    } else {
      ATTEND(attend_wide);
    }
  }
#if FUSED_GEMM
  if (next_n) {
    const IDX_T row = batch * queries + first, column = first_head * S_DV;
    multiply_part(AT(parts), get_group_id(1), get_num_groups(2) * queries, row,
                  i_min(VW * T_NQ, queries - first), AT(y) + row * y_step + column, y_step, column,
                  (head_end - first_head) * S_DV, y_step, AT(next_b), next_n);
  }
#endif
}
