// y = softmax(scale * Q K^T + mask) V for GPUs, computed in float32; q, k, v, mask and their
// strides are described in common/attention_scalar.clh, options in common/attention.clh. The
// options CAUSAL, AT_END, WINDOW and NAN_TO_ZERO are the kernel arguments causal, at_end, window
// and nan_to_zero here, so that fewer kernels are compiled.
//   y           written: DATA_T [batch, queries, heads, S_DV]
//   SPLIT_KEYS  1: `parts` work-groups split the keys. y is then float32 [batch, KV head, row,
//               part, S_DV + 2], partial results that attention_reduce_splits.cl merges: weighted
//               sums of values, maximum score, sum of weights
// One work-group of T_LANES x T_LINES work-items per (tile of rows, last tile first; KV head; batch
// * parts + part). A row is query * group + the index of the query head among the `group` heads
// that share the KV head. A tile has T_LINES * T_RQ rows. For T_LANES * T_RK keys at a time, a
// work-group computes
//   1. scores from slices of Q and K, T_TD elements deep, in local memory: T_RQ x T_RK scores per
//     work-item;
//   2. row maxima, reduced in local memory, and the softmax weights, stored there;
//   3. weighted sums of rows of V, T_TV of them in local memory at once: per work-item T_RQ rows by
//     every T_LANES-th run of columns.
// Meanwhile the operands of the next step are loaded into registers.
#define CAUSAL causal
#define AT_END at_end
#define WINDOW window
#define NAN_TO_ZERO nan_to_zero
#include "common/base.clh"
#include "common/attention.clh"
#ifndef DATA_T
#define DATA_T float
#endif
#ifndef T_LANES
#define T_LANES 16
#define T_LINES 8
#define T_RQ 4
#define T_RK 4
#define T_TD 16
#define T_TV 16
#define SPLIT_KEYS 0
#endif
#include "common/math.clh"
#include "common/scalar.clh"
#include "common/storage.clh"

#include "common/attention_scalar.clh"
#include "common/group.clh"
#include "common/sub_group.clh"

#define ITEMS (T_LANES * T_LINES)
#define TILE_Q (T_LINES * T_RQ)
#define TILE_K (T_LANES * T_RK)
// Result columns per work-item and per group; those past S_DV are zeros and are not stored.
#define RV ((S_DV + T_LANES - 1) / T_LANES)
#define TILE_V (T_LANES * RV)
// Row padding of four elements: work-items that read a column of a tile use different banks.
#define Q_ROW (T_TD + 4)
#define P_ROW (TILE_K + 4)
#define TOP_ROW (T_LANES + 4)
// kv_tile holds a slice of keys [TILE_K][Q_ROW], later one of values [T_TV][TILE_V].
#define KV_SIZE i_max(TILE_K * Q_ROW, T_TV * TILE_V)
// Result column of a work-item's c-th sum: a work-item has runs of RUN adjacent columns.
#define RUN (RV % 4 == 0 ? 4 : RV % 2 == 0 ? 2 : 1)
#define COLUMN(c) (((c) / RUN * T_LANES + lane) * RUN + (c) % RUN)
// Larger loops are not unrolled: loads hoisted to the front would exhaust the registers.
#define ROLLED _Pragma("unroll 1")
#define UNROLLED(u, count) _Pragma("unroll") for (int u = 0; u < (count); ++u)
// Elements of a slice that each work-item loads, and the coordinates of its u-th one; the last ones
// may be past the slice's end.
#define SHARE(size) (((size) + ITEMS - 1) / ITEMS)
#define ROW_OF(u, width)                                                   \
  (ITEMS % (width) == 0 ? item / (width) + (u) * (ITEMS / (width)) : (item + (u)*ITEMS) / (width))
#define COLUMN_OF(u, width) (ITEMS % (width) == 0 ? item % (width) : (item + (u)*ITEMS) % (width))
#define IN_SLICE(u, size) ((size) % ITEMS == 0 || item + (u)*ITEMS < (size))
// Q is loaded once if a head is one slice.
#define NEEDS_Q(key0) (S_D > T_TD || (key0) == begin)

// Reads past the edges are clamped to the last element, which needs no branch.
#define FETCH_QK(key0, d0)                                                                  \
  if (NEEDS_Q(key0)) {                                                                      \
    UNROLLED(u, SHARE(TILE_Q * T_TD)) {                                                     \
      const IDX_T d = (d0) + COLUMN_OF(u, T_TD);                                            \
      const float x = LOAD(AT(q), q_at[ROW_OF(u, T_TD)] + i_min(d, S_D - 1));               \
      q_next[u] = d < S_D ? x * scale : 0.0f;                                               \
    }                                                                                       \
  }                                                                                         \
  UNROLLED(u, SHARE(TILE_K * T_TD)) {                                                       \
    const IDX_T d = (d0) + COLUMN_OF(u, T_TD), j = i_min((key0) + ROW_OF(u, T_TD), last_key); \
    const float x = LOAD(AT(k), k_at + j * k_step + i_min(d, S_D - 1));                     \
    k_next[u] = d < S_D ? x : 0.0f;                                                         \
  }
#define PUT(tile, next, size)                                                               \
  UNROLLED(u, SHARE(size)) tile[ROW_OF(u, T_TD) * Q_ROW + COLUMN_OF(u, T_TD)] = next[u];
// Keys past the end have weight 0; their values must still be finite.
#define FETCH_V(key0)                                                                       \
  UNROLLED(u, SHARE(T_TV * TILE_V)) {                                                       \
    const IDX_T d = COLUMN_OF(u, TILE_V), j = (key0) + ROW_OF(u, TILE_V);                   \
    const float x = LOAD(AT(v), v_at + i_min(j, last_key) * v_step + i_min(d, S_DV - 1));   \
    v_next[u] = j <= last_key && d < S_DV ? x : 0.0f;                                       \
  }
// One lane per row reduces the values of all its lanes in `tops`.
#define FOLD_LANES(JOIN)                                                                  \
  barrier(CLK_LOCAL_MEM_FENCE);                                                           \
  if (item < TILE_Q) {                                                                    \
    float all_ = tops[item * TOP_ROW];                                                    \
    for (int l = 1; l < T_LANES; ++l) all_ = JOIN(all_, tops[item * TOP_ROW + l]);         \
    FOLDED(item) = all_;                                                                  \
  }                                                                                       \
  barrier(CLK_LOCAL_MEM_FENCE);
#define FOLDED(row) tops[(row)*TOP_ROW + T_LANES]

#if SPLIT_KEYS
#define Y_T float
#define PARTS_INPUT , const IDX_T parts
#define SHARERS parts
#else
#define Y_T DATA_T
#define PARTS_INPUT
#define SHARERS 1
#endif

__kernel SUB_GROUP __attribute__((reqd_work_group_size(T_LANES, T_LINES, 1)))
void fused_attention_gpu(OUT(Y_T, y), ATTENTION_INPUTS, const IDX_T causal, const IDX_T at_end,
                         const IDX_T window, const IDX_T nan_to_zero PARTS_INPUT) {
  __local __attribute__((aligned(16))) float q_tile[TILE_Q * Q_ROW];
  __local __attribute__((aligned(16))) float kv_tile[KV_SIZE];
  __local __attribute__((aligned(16))) float weights[TILE_Q * P_ROW];
  __local __attribute__((aligned(16))) float tops[TILE_Q * TOP_ROW];
  // Per row: offsets in q and in the mask, first key, and one past the last key.
  __local IDX_T q_at[TILE_Q], mask_at[TILE_Q], first_of[TILE_Q], end_of[TILE_Q];
  // In local memory, because compilers otherwise keep an address per loaded element.
  __local IDX_T last_key;
  const IDX_T lane = get_local_id(0), line = get_local_id(1), item = line * T_LANES + lane;
  const IDX_T rows = queries * group;
  // The group index from global ids: a launch may be split, with an offset. Under a causal mask the
  // last rows see most keys, so they start first.
  const IDX_T tile = (rows - 1) / TILE_Q - (IDX_T)(get_global_id(0) / T_LANES);
  const IDX_T kv_head = get_global_id(1) / T_LINES;
  const IDX_T batch = (IDX_T)get_global_id(2) / SHARERS;
  const IDX_T part = (IDX_T)get_global_id(2) % SHARERS;
  const IDX_T row0 = tile * TILE_Q;
  const IDX_T keys = KEYS_OF(batch);
  const IDX_T first_place = FIRST_PLACE(keys);
  const IDX_T k_at = batch * k_batch + kv_head * k_head, v_at = batch * v_batch + kv_head * v_head;
  // Range of keys that any row of the tile sees, within this part.
  const IDX_T first = FIRST_KEY(first_place + row0 / group);
  const IDX_T last_place = first_place + (i_min(row0 + TILE_Q, rows) - 1) / group;
  const IDX_T key_end = i_max(first, KEY_END(last_place, keys));
  const IDX_T share = ((key_end - first + TILE_K - 1) / TILE_K + SHARERS - 1) / SHARERS * TILE_K;
  const IDX_T begin = first + part * share, end = i_min(begin + share, key_end);

  if (item == 0) last_key = end - 1;
  if (item < TILE_Q) {
    const IDX_T row = i_min(row0 + item, rows - 1), i = row / group;
    const IDX_T head = kv_head * group + row % group;
    q_at[item] = batch * q_batch + head * q_head + i * q_step;
    mask_at[item] = batch * mask_batch + head * mask_head + i * mask_query;
    first_of[item] = FIRST_KEY(first_place + i);
    end_of[item] = i_min(end, KEY_END(first_place + i, keys));
  }
  // See fused_attention.cl for why the maximum starts at the lowest finite number.
  float top[T_RQ], sum[T_RQ], result[T_RQ][RV];
  UNROLLED(r, T_RQ) {
    top[r] = -FLT_MAX;
    sum[r] = 0.0f;
    UNROLLED(c, RV) result[r][c] = 0.0f;
  }
  float q_next[SHARE(TILE_Q * T_TD)], k_next[SHARE(TILE_K * T_TD)], v_next[SHARE(T_TV * TILE_V)];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (begin < end) {
    FETCH_QK(begin, 0)
  }
  for (IDX_T key0 = begin; key0 < end; key0 += TILE_K) {
    float s[T_RQ][T_RK];
    UNROLLED(r, T_RQ) UNROLLED(c, T_RK) s[r][c] = 0.0f;
    ROLLED for (int d0 = 0; d0 < S_D; d0 += T_TD) {
      barrier(CLK_LOCAL_MEM_FENCE);
      if (NEEDS_Q(key0)) {
        PUT(q_tile, q_next, TILE_Q * T_TD)
      }
      PUT(kv_tile, k_next, TILE_K * T_TD)
      barrier(CLK_LOCAL_MEM_FENCE);
      if (d0 + T_TD < S_D) {
        FETCH_QK(key0, d0 + T_TD)
      } else {
        FETCH_V(key0)
      }
      ROLLED for (int d = 0; d < T_TD; d += 4) {
        float x[T_RQ][4], w[T_RK][4];
        UNROLLED(r, T_RQ) UNROLLED(u, 4) x[r][u] = q_tile[(line * T_RQ + r) * Q_ROW + d + u];
        UNROLLED(c, T_RK) UNROLLED(u, 4) w[c][u] = kv_tile[(c * T_LANES + lane) * Q_ROW + d + u];
        UNROLLED(u, 4) UNROLLED(r, T_RQ) UNROLLED(c, T_RK) s[r][c] += x[r][u] * w[c][u];
      }
    }
    UNROLLED(r, T_RQ) {
      const IDX_T row = line * T_RQ + r;
      float most = -FLT_MAX;
      UNROLLED(c, T_RK) {
        const IDX_T j = key0 + c * T_LANES + lane;
        const float score = WITH_MASK(CAPPED(s[r][c]), mask_at[row] + i_min(j, end - 1) * mask_key);
        s[r][c] = j >= first_of[row] && j < end_of[row] ? score : -INFINITY;
        most = fmax(most, s[r][c]);
      }
      tops[row * TOP_ROW + lane] = most;
    }
    FOLD_LANES(fmax)
    UNROLLED(r, T_RQ) {
      const IDX_T row = line * T_RQ + r;
      const float most = fmax(top[r], FOLDED(row));
      const float rescale = exp_below_0(top[r] - most);
      top[r] = most;
      sum[r] *= rescale;
      UNROLLED(c, RV) result[r][c] *= rescale;
      UNROLLED(c, T_RK) {
        const float p = exp_below_0(s[r][c] - most);
        sum[r] += p;
        weights[row * P_ROW + c * T_LANES + lane] = p;
      }
    }
    ROLLED for (int j0 = 0; j0 < TILE_K; j0 += T_TV) {
      if (j0) barrier(CLK_LOCAL_MEM_FENCE);
      UNROLLED(u, SHARE(T_TV * TILE_V)) {
        if (IN_SLICE(u, T_TV * TILE_V)) kv_tile[item + u * ITEMS] = v_next[u];
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      if (j0 + T_TV < TILE_K) {
        FETCH_V(key0 + j0 + T_TV)
      } else if (key0 + TILE_K < end) {
        FETCH_QK(key0 + TILE_K, 0)
      }
      ROLLED for (int j = 0; j < T_TV; j += 4) {
        float p[T_RQ][4];
        UNROLLED(r, T_RQ) UNROLLED(u, 4) p[r][u] = weights[(line * T_RQ + r) * P_ROW + j0 + j + u];
        UNROLLED(u, 4) {
          float x[RV];
          UNROLLED(c, RV) x[c] = kv_tile[(j + u) * TILE_V + COLUMN(c)];
          UNROLLED(r, T_RQ) UNROLLED(c, RV) result[r][c] += p[r][u] * x[c];
        }
      }
    }
  }
  // Each lane holds the sum of weights of its own keys.
  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLLED(r, T_RQ) tops[(line * T_RQ + r) * TOP_ROW + lane] = sum[r];
  FOLD_LANES(SUM_OF)
  UNROLLED(r, T_RQ) {
    const IDX_T row = row0 + line * T_RQ + r;
    const float all = FOLDED(line * T_RQ + r);
    if (row < rows) {
#if SPLIT_KEYS
      const IDX_T at = (((batch * (heads / group) + kv_head) * rows + row) * parts + part) * (S_DV + 2);
      UNROLLED(c, RV) if (COLUMN(c) < S_DV) AT(y)[at + COLUMN(c)] = result[r][c];
      if (lane == 0) {
        AT(y)[at + S_DV] = top[r];
        AT(y)[at + S_DV + 1] = all;
      }
#else
      const IDX_T head = kv_head * group + row % group;
      const IDX_T at = ((batch * queries + row / group) * heads + head) * S_DV;
      const float inverse = INVERSE_OF(all, keys);
      UNROLLED(c, RV) if (COLUMN(c) < S_DV) STORE(AT(y), at + COLUMN(c), result[r][c] * inverse);
#endif
    }
  }
}
