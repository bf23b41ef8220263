// SampleTokens: samples the next token of each sequence (row) from its logits.
//   logits    read: storage DATA_T [rows, n]; a row is divided into `chunks` chunks of `chunk`
//             tokens: T_CHUNK, or more if there would be too many chunks
//   settings  read: float32 [rows, 8]: temperature (0: greedy), top_p, min_p, typical_p,
//             repetition, presence and frequency penalty, length of the prompt
//   limits    read: int32 [rows, 4]: top_k (0: all), length of the history, seed (low and high 32
//             bits)
//   history   read: int32 [rows, most]: tokens of prompt and answer
//   draw      read: int32 [rows]: index of the random word in the seed's sequence
//   allowed   read if F_ALLOWED is 1: uint32 [rows, words]: bit mask of the tokens that may be
//             sampled
//   bias_ids, bias_values  read if F_BIAS is 1: int32, float32 [rows, biases]: tokens, and numbers
//                      added to their logits
//   token, logprob  written: int32, float32 [rows]: the sampled token, and the log of its
//                   probability
//   status    a row in which no token is allowed is reported there (common/index.clh)
// Intermediate results: scores float32 [rows, chunks * chunk] (logits after mask, bias and
// penalties), counts int32 of the same shape, parts float32 [rows, chunks, PARTS] (maxima and sums
// of each chunk), best int32 [rows] (token of the highest score), whole float32 [rows] (log of the
// sum of exp(logit)), histogram uint32 [rows, BUCKETS, 2] (low and high word), weights uint64
// [rows, chunks]
// A program has only the first of these kernels if F_ALLOWED is defined (as 0 or 1), else only the
// two others, because it takes a second to compile all three. Launches, in order:
//   sample_scores   writes scores and parts; one work-item per (`per` chunks, row), in vectors
//   sample_best     writes best and whole; one work-item per row, in dimension 1
//   sample_draw     writes token and logprob: applies the cut-offs (top_k, …) and samples; one
//                   work-group per row, in dimension 1. Separate from sample_best, since PoCL's
//                   compiler needs a minute for both in one kernel
// On CPUs work-groups have one work-item. Elsewhere they have T_ITEMS, and the first two kernels
// are
//   sample_scores_group   one work-group per (chunk, row)
//   sample_best_group     sample_best, and the chunks' contributions to a draw: `histogram` for the
//                      cut-offs, or, without cut-offs, `weights`, the weight of each chunk; one
//                      work-group per (chunk, row)
//   T_VW  lanes per vector;  T_BUCKETS, T_LIST  see common/selection.clh
#ifndef DATA_T
#define DATA_T float
#define STORAGE plain
#endif
#ifndef T_VW
#define T_VW 8
#endif
#ifndef T_ITEMS
#define T_ITEMS 1
#endif
#ifndef T_LIST
#define T_LIST 1024
#endif
#ifndef T_BUCKETS
#define T_BUCKETS 1024
#endif
#define VW T_VW
#include "common/base.clh"
#include "common/math.clh"
#include "common/philox.clh"
#include "common/rows.clh"
#include "common/scalar.clh"
#include "common/storage.clh"
#include "common/widen.clh"
#include "common/selection.clh"
#include "common/sub_group.clh"
#if T_ITEMS > 1
#include "common/group.clh"
#endif

#if F_ALLOWED
#define ALLOWED_INPUT , IN(uint, allowed)
#else
#define ALLOWED_INPUT
#endif
#if F_BIAS
#define BIAS_INPUTS , IN(int, bias_ids), IN(float, bias_values)
#else
#define BIAS_INPUTS
#endif
#define SETTINGS 8
#define LIMITS 4
#define JOIN_TOP(a, b) PICK((a) > (b), a, b)

// Returns v with NaN replaced by -inf, and inf by the largest float.
static inline F usable(const F v) {
  const F number = PICK(v == v, v, (F)(-INFINITY));
  return PICK(number > (F)(FLT_MAX), (F)(FLT_MAX), number);
}

static inline float usable_one(const float v) {
  return v != v ? -INFINITY : (v > FLT_MAX ? FLT_MAX : v);
}

// Returns the VW logits of a row of n tokens from token i on, made finite or -inf by `usable`;
// -inf past the last token.
static inline F load_logits(__global const DATA_T *const row, const IDX_T i, const IDX_T n) {
  if (i + VW <= n) return usable(LOAD_WIDE(STORAGE, row + i));
  F v = (F)(-INFINITY);
  for (IDX_T lane = 0; i + lane < n; ++lane) ((float *)&v)[lane] = LOAD(row, i + lane);
  return usable(v);
}

// Summarizes the logits of tokens `begin` to `end` (exclusive) of a row of n tokens: writes their
// maximum to parts[1], and the sum of exp(logit - maximum) to parts[2].
static inline void sum_chunk(__global const DATA_T *const row, const IDX_T begin, const IDX_T end,
                             const IDX_T n, __global float *const parts) {
  F top = (F)(-INFINITY), sum = (F)(0.0f);
  for (IDX_T i = begin; i < end; i += VW) {
    const F v = load_logits(row, i, n);
    top = JOIN_TOP(top, v);
  }
  FOLD(top, JOIN_TOP)
  const float largest = ((const float *)&top)[0];
  const F base = (F)(largest > -INFINITY ? largest : 0.0f);
  for (IDX_T i = begin; i < end; i += VW) sum = sum + c_exp(load_logits(row, i, n) - base);
  FOLD(sum, JOIN_SUM)
  parts[1] = largest;
  parts[2] = ((const float *)&sum)[0];
}

// Returns the maximum of scores[begin] to scores[end - 1].
static inline float top_of(__global const float *const scores, const IDX_T begin,
                           const IDX_T end) {
  F top = (F)(-INFINITY);
  for (IDX_T i = begin; i < end; i += VW) top = JOIN_TOP(top, LOAD_F(scores + i));
  FOLD(top, JOIN_TOP)
  return ((const float *)&top)[0];
}

// Applies the penalties in `settings` to the scores of tokens begin..begin + span - 1 that occur
// in the history of `length` tokens, once per token. The repetition penalty is for every such
// token; presence and frequency penalties count the occurrences after the prompt, which is the
// first settings[7] tokens. counts [token] is scratch: initialized here for tokens of the history
// only, and -1 once a token is penalized.
static inline void penalise(__global float *const scores, __global int *const counts,
                            __global const int *const history, const IDX_T length,
                            __global const float *const settings, const IDX_T begin,
                            const uint span) {
  const float repetition = settings[4] > 0.0f ? settings[4] : 1.0f;
  const float presence = settings[5], frequency = settings[6], prompt = settings[7];
  if (repetition == 1.0f && presence == 0.0f && frequency == 0.0f) return;
  for (IDX_T k = 0; k < length; ++k)
    if ((uint)(history[k] - begin) < span) counts[history[k]] = 0;
  for (IDX_T k = 0; k < length; ++k)
    if ((uint)(history[k] - begin) < span && (float)k >= prompt) ++counts[history[k]];
  for (IDX_T k = 0; k < length; ++k) {
    const IDX_T token = history[k];
    if ((uint)(token - begin) >= span || counts[token] < 0) continue;
    float v = scores[token];
    v = v > 0.0f ? v / repetition : v * repetition;
    if (counts[token] > 0) v -= presence + frequency * counts[token];
    scores[token] = usable_one(v);
    counts[token] = -1;
  }
}

#ifdef F_ALLOWED
#if T_ITEMS == 1
__kernel GROUP
void sample_scores(IN(DATA_T, logits), IN(float, settings), IN(int, limits), IN(int, history),
                   OUT(float, scores), OUT(int, counts), OUT(float, parts), const IDX_T n,
                   const IDX_T chunk, const IDX_T chunks, const IDX_T per, const IDX_T most,
                   const IDX_T words, const IDX_T biases ALLOWED_INPUT BIAS_INPUTS) {
  const IDX_T row = get_global_id(1);
  const IDX_T first = (IDX_T)get_global_id(0) * per;
  if (first >= chunks) return;
  const IDX_T last = i_min(first + per, chunks);
  const IDX_T begin = first * chunk, end = i_min(last * chunk, n);
  __global const DATA_T *const from = AT(logits) + row * n;
  __global float *const to = AT(scores) + row * chunks * chunk;
  __global float *const own = AT(parts) + row * chunks * PARTS;
  for (IDX_T c = first; c < last; ++c) {
    sum_chunk(from, c * chunk, (c + 1) * chunk, n, own + c * PARTS);
    for (IDX_T i = c * chunk; i < (c + 1) * chunk; i += VW) {
      F v = load_logits(from, i, n);
#if F_ALLOWED
      if (i < n) {
        const int bits = AT(allowed)[row * words + i / 32] >> (i % 32);
        v = PICK((((I)(bits) >> lanes()) & (I)(1)) != (I)(0), v, (F)(-INFINITY));
      }
#endif
      STORE_F(to + i, v);
    }
  }
#if F_BIAS
  for (IDX_T k = 0; k < biases; ++k) {
    const IDX_T token = AT(bias_ids)[row * biases + k];
    if ((uint)(token - begin) < (uint)(end - begin))
      to[token] = usable_one(to[token] + AT(bias_values)[row * biases + k]);
  }
#endif
  const IDX_T length = AT(limits)[row * LIMITS + 1];
  penalise(to, AT(counts) + row * chunks * chunk, AT(history) + row * most,
           i_min(length, most), AT(settings) + row * SETTINGS, begin, end - begin);
  for (IDX_T c = first; c < last; ++c) own[c * PARTS] = top_of(to, c * chunk, (c + 1) * chunk);
}
#else
// Each token of the chunk belongs to one work-item, which adds its biases in order. In `found` all
// work-items together count a token's occurrences after the prompt, and set PRESENT if it occurs in
// the history.
#define PRESENT (1 << 30)
#define EACH_TOKEN(i) for (IDX_T i = begin + lane; i < begin + chunk; i += T_ITEMS)

static inline float penalised(const float v, const int found, __global const float *const settings) {
  const float repetition = settings[4] > 0.0f ? settings[4] : 1.0f;
  const float divided = v > 0.0f ? v / repetition : v * repetition;
  const int answered = found & (PRESENT - 1);
  return usable_one(answered ? divided - (settings[5] + settings[6] * answered) : divided);
}

__kernel SUB_GROUP GROUP
void sample_scores_group(IN(DATA_T, logits), IN(float, settings), IN(int, limits),
                         IN(int, history), OUT(float, scores), OUT(uint, histogram),
                         OUT(float, parts), const IDX_T n, const IDX_T chunk, const IDX_T chunks,
                         const IDX_T most, const IDX_T words,
                         const IDX_T biases ALLOWED_INPUT BIAS_INPUTS) {
  __local float folded[T_ITEMS];
  __local int found[BUCKETS];
  const IDX_T row = get_global_id(1), lane = ITEM, at = get_global_id(0) / T_ITEMS;
  const IDX_T begin = at * chunk;
  __global const DATA_T *const from = AT(logits) + row * n;
  __global const float *const set = AT(settings) + row * SETTINGS;
  __global float *const to = AT(scores) + row * chunks * chunk;
  __global float *const own = AT(parts) + (row * chunks + at) * PARTS;
  float raw = -INFINITY, sum = 0.0f, top = -INFINITY;
  EACH_TOKEN(i) {
    found[i - begin] = 0;
    raw = fmax(raw, load_logits(from, i, n));
  }
  GROUP_FOLD(raw, fmax, folded, T_ITEMS)
  const float base = raw > -INFINITY ? raw : 0.0f;
  EACH_TOKEN(i) sum += c_exp(load_logits(from, i, n) - base);
  GROUP_FOLD(sum, SUM_OF, folded, T_ITEMS)
  const bool same = (set[4] == 1.0f || !(set[4] > 0.0f)) && set[5] == 0.0f && set[6] == 0.0f;
  const IDX_T length = same ? 0 : i_min(AT(limits)[row * LIMITS + 1], most);
  for (IDX_T k = lane; k < length; k += T_ITEMS) {
    const IDX_T token = AT(history)[row * most + k];
    if ((uint)(token - begin) >= (uint)(i_min(begin + chunk, n) - begin)) continue;
    atomic_or(&found[token - begin], PRESENT);
    if ((float)k >= set[7]) atomic_inc(&found[token - begin]);
  }
  SYNC
  EACH_TOKEN(i) {
    float v = load_logits(from, i, n);
#if F_ALLOWED
    if (i < n && !(AT(allowed)[row * words + i / 32] >> (i % 32) & 1)) v = -INFINITY;
#endif
#if F_BIAS
    for (IDX_T k = 0; k < biases; ++k)
      if (AT(bias_ids)[row * biases + k] == i && i < n)
        v = usable_one(v + AT(bias_values)[row * biases + k]);
#endif
    if (found[i - begin]) v = penalised(v, found[i - begin], set);
    to[i] = v;
    top = fmax(top, v);
  }
  GROUP_FOLD(top, fmax, folded, T_ITEMS)
  if (lane == 0) {
    own[0] = top;
    own[1] = raw;
    own[2] = sum;
  }
  for (IDX_T b = at * T_ITEMS + lane; b < 2 * BUCKETS; b += chunks * T_ITEMS)
    AT(histogram)[row * 2 * BUCKETS + b] = 0;
}
#endif
#else  // F_ALLOWED

// Returns the first token whose score is the row's maximum. parts [chunk][PARTS] holds each
// chunk's maximum score.
JOINT IDX_T first_token(const Row *const row, __global const float *const parts,
                                const Shared *const my) {
  ulong best = 0;
  for (IDX_T c = ITEM; c < row->chunks && !best; c += T_ITEMS)
    if (parts[c * PARTS] == row->top) best = ~(uint)c;
  const IDX_T begin = (IDX_T) ~(uint)largest_of(best, my) * row->chunk;
  best = 0;
  for (IDX_T i = begin + ITEM; i < begin + row->chunk && !best; i += T_ITEMS)
    if (row->scores[i] == row->top) best = ~(uint)i;
  return (IDX_T) ~(uint)largest_of(best, my);
}

// Returns the log of the sum of exp(logit) of a row, from each chunk's maximum logit and sum in
// parts [chunk][PARTS].
JOINT float log_sum(const Row *const row, __global const float *const parts,
                            const Shared *const my) {
  ulong best = 0, sum = 0;
  for (IDX_T c = ITEM; c < row->chunks; c += T_ITEMS)
    best = i_max(best, (ulong)ascending(parts[c * PARTS + 1]));
  const float most = of_ascending((uint)largest_of(best, my)), top = most > -INFINITY ? most : 0.0f;
  for (IDX_T c = ITEM; c < row->chunks; c += T_ITEMS)
    sum += fixed(parts[c * PARTS + 2] * exp_one(parts[c * PARTS + 1] - top));
  const F total = c_log((F)((float)total_of(sum, my) * FIXED_UNIT));
  return top + ((const float *)&total)[0];
}

// Steps of a draw, in order.
enum { TOP_K, TOP_P, WEIGH, TYPICAL, DRAW, DONE };

static inline int next_step(int step, const int wanted) {
  while (step < DONE && !(wanted >> step & 1)) ++step;
  return step;
}

// Returns the steps of a draw (TOP_K, …) that a row's settings need, as a mask of bits 1 << step;
// 0 if the row is greedy.
static inline int steps_of(__global const float *const settings, const int top_k, const IDX_T n) {
  if (!(settings[0] > 0.0f)) return 0;
  const bool typical = settings[3] > 0.0f && settings[3] < 1.0f;
  return (top_k > 0 && top_k < n) << TOP_K | (settings[1] < 1.0f) << TOP_P |
         (typical ? 1 << WEIGH | 1 << TYPICAL : 0) | 1 << DRAW;
}

static inline float lightest(__global const float *const settings) {
  return settings[2] < 1.0f ? settings[2] : 1.0f;
}

static inline uint fraction_of(const float part) {
  return part > 0.0f ? (uint)(part * 0x1p32f) : 0;
}

// Results of a row's chunks (sample_best_group): the histogram of scores, low and high words
// alternating, and the weight of each chunk.
typedef struct {
  __global const uint *histogram;
  __global const ulong *weights;
} Made;

// Samples a token of a row by the steps of bit mask `wanted`, in order: cut-offs (TOP_K, TOP_P,
// TYPICAL) leave fewer tokens in `row`, DRAW picks one by the random 32-bit `word`. Returns the
// token; `other` if there is no step (greedy).
JOINT IDX_T draw_token(Row *const row, const Made made,
                               __global const float *const settings,
                               const int top_k, const int wanted, const uint word,
                               const IDX_T other, const Shared *const my) {
  IDX_T token = other;
  ulong all = ULONG_MAX;
  for (int step = next_step(0, wanted); step < DONE; step = next_step(step + 1, wanted)) {
    const bool in_chunks = step == WEIGH || step == DRAW;
    const int buckets = in_chunks ? row->chunks : BUCKETS;
    const bool anew = step != TOP_P || !(wanted >> TOP_K & 1);
    if (step > TOP_P && settings[2] > 0.0f) row->light = lightest(settings);
    clear(my->counts, my->masses, anew ? buckets + 1 : 0);
    ulong own_moment = 0;
    const bool by_score = step <= TOP_P && anew, weighed = T_ITEMS > 1 && wanted == 1 << DRAW;
    choose_chunks(row, (in_chunks && !weighed) || step == TYPICAL ? BUCKETS : -1, my);
    if (in_chunks) own_moment = weigh_chunks(row, my);
    if (step == TYPICAL) count_surprises(row, my);
#if T_ITEMS == 1
    if (by_score) count_scores(row, my);
#else
    for (int b = ITEM; b < (by_score ? BUCKETS : 0); b += T_ITEMS)
      set_mass(my->masses, b, (ulong)made.histogram[2 * b + 1] << 32 | made.histogram[2 * b]);
    for (int c = ITEM; c < (weighed ? row->chunks : 0); c += T_ITEMS)
      set_mass(my->masses, c, made.weights[c]);
#endif
    SYNC
    if (by_score) part_scores(my);
    const ulong moment = total_of(own_moment, my), total = mass_of(my->masses, buckets, my);
    all = i_min(all, total);
    const uint fraction = step == DRAW ? word & 0xffffff00u
                                       : fraction_of(settings[step == TYPICAL ? 3 : 1]);
    // The maximum is computed here: computed below, beside top_k, it crashes PoCL 6.0 on LLVM 18,
    // whose InstCombine "did not reach a fixpoint" (pocl issue 1608).
    const ulong part = i_max(part_of(all, fraction) + (step == DRAW), (ulong)1);
    const Goal goal = {step == TYPICAL, step != TOP_K, step == TOP_P, step == TOP_K ? top_k : part};
    const Spot spot = find(my->counts, my->masses, buckets, goal.target, goal.by_mass, my);
    const Found found = find_exact(row, &goal, &spot, in_chunks ? 0 : 4, my);
    if (step <= TOP_P) row->least = of_ascending(~found.key);
    if (step == TOP_P) row->last = found.last;
    if (step == WEIGH) row->centre = (float)moment / (float)total;
    if (step == TYPICAL) row->reach = as_float(found.key);
    all = step == TOP_K ? found.spot.mass + found.spot.own_mass : ULONG_MAX;
    for (int last = step == DRAW; last; last = 0)
      token = find_in_chunk(row, spot.bucket, goal.target - spot.mass, my);
  }
  return token;
}

// Returns the maximum score of a row, from each chunk's maximum in parts [chunk][PARTS].
JOINT float top_score(__global const float *const parts, const IDX_T chunks,
                              const Shared *const my) {
  ulong best = 0;
  for (IDX_T c = ITEM; c < chunks; c += T_ITEMS)
    best = i_max(best, (ulong)ascending(parts[c * PARTS]));
  return of_ascending((uint)largest_of(best, my));
}

#if T_ITEMS == 1
__kernel GROUP
void sample_best(IN(float, scores), IN(float, parts), OUT(int, best), OUT(float, whole),
                 OUT(long, status), const IDX_T n, const IDX_T chunk, const IDX_T chunks) {
  MAKE_SHARED(my)
  const IDX_T at = get_global_id(1);
  __global const float *const own = AT(parts) + at * chunks * PARTS;
  const float top = top_score(own, chunks, my);
  const Row row = whole_row(AT(scores) + at * chunks * chunk, own, n, chunk, chunks, top, 1.0f);
  const IDX_T first = first_token(&row, own, my);
  const float sum = log_sum(&row, own, my);
  if (ITEM == 0) {
    if (!(top > -INFINITY)) AT(status)[0] = at + 1;
    AT(best)[at] = first;
    AT(whole)[at] = sum;
  }
}
#define MADE_INPUTS
#define MADE(at) {0, 0}
#else
// Adds the histogram of a chunk, my->masses in local memory, to that of its row in global memory:
// BUCKETS sums, each as a low and a high 32-bit word.
JOINT void add_up(__global uint *const histogram, const Shared *const my) {
  SYNC
  for (int b = ITEM; b < BUCKETS; b += T_ITEMS) {
    const uint low = my->masses[b].low;
    uint high = my->masses[b].high;
    if (low) high += atomic_add(&histogram[2 * b], low) + low < low;
    if (high) atomic_add(&histogram[2 * b + 1], high);
  }
}

// Prepares the local histogram for the next pass (count_scores or weigh_chunks): clears it, and
// restricts the pass to one chunk of the row, or to none if `wanted` is false.
JOINT void choose_one(const IDX_T chunk, const bool wanted, const Shared *const my) {
  clear(my->counts, my->masses, BUCKETS + 1);
  if (ITEM == 0) {
    my->chosen[0] = (ushort)chunk;
    my->choices[0] = wanted;
  }
  SYNC
}

__kernel SUB_GROUP GROUP
void sample_best_group(IN(float, scores), IN(float, parts), IN(float, settings), IN(int, limits),
                       OUT(int, best), OUT(float, whole), INOUT(uint, histogram),
                       OUT(ulong, weights), OUT(long, status), const IDX_T n, const IDX_T chunk,
                       const IDX_T chunks) {
  MAKE_SHARED(my)
  const IDX_T at = get_global_id(1), own_chunk = get_global_id(0) / T_ITEMS;
  __global const float *const own = AT(parts) + at * chunks * PARTS;
  __global const float *const set = AT(settings) + at * SETTINGS;
  const float top = top_score(own, chunks, my);
  Row row = whole_row(AT(scores) + at * chunks * chunk, own, n, chunk, chunks, top, set[0]);
  const int wanted = top > -INFINITY ? steps_of(set, AT(limits)[at * LIMITS], n) : 0;
  choose_one(own_chunk, wanted & (1 << TOP_K | 1 << TOP_P), my);
  count_scores(&row, my);
  add_up(AT(histogram) + at * 2 * BUCKETS, my);
  choose_one(own_chunk, wanted == 1 << DRAW, my);
  if (set[2] > 0.0f) row.light = lightest(set);
  weigh_chunks(&row, my);
  const IDX_T first = first_token(&row, own, my);
  const float sum = log_sum(&row, own, my);
  if (ITEM == 0) {
    AT(weights)[at * chunks + own_chunk] = MASS(my->masses[own_chunk]);
    if (own_chunk == 0) {
      if (!(top > -INFINITY)) AT(status)[0] = at + 1;
      AT(best)[at] = first;
      AT(whole)[at] = sum;
    }
  }
}
#define MADE_INPUTS IN(uint, histogram), IN(ulong, weights),
#define MADE(at) {AT(histogram) + (at) * 2 * BUCKETS, AT(weights) + (at) * chunks}
#endif

__kernel SUB_GROUP GROUP
void sample_draw(IN(float, scores), IN(float, parts), IN(DATA_T, logits), IN(float, settings),
                 IN(int, limits), IN(int, draw), IN(int, best), IN(float, whole), MADE_INPUTS
                 OUT(int, token), OUT(float, logprob), const IDX_T n, const IDX_T chunk, const IDX_T chunks) {
  MAKE_SHARED(my)
  const IDX_T at = get_global_id(1);
  __global const float *const set = AT(settings) + at * SETTINGS;
  __global const int *const limit = AT(limits) + at * LIMITS;
  __global const float *const own = AT(parts) + at * chunks * PARTS;
  const float top = top_score(own, chunks, my);
  Row row = whole_row(AT(scores) + at * chunks * chunk, own, n, chunk, chunks, top, set[0]);
  const Made made = MADE(at);
  const uint word = random_word(AT(draw)[at], limit[2], limit[3]);
  const int wanted = top > -INFINITY ? steps_of(set, limit[0], n) : 0;
  const IDX_T found = draw_token(&row, made, set, limit[0], wanted, word, AT(best)[at], my);
  if (ITEM == 0) {
    AT(token)[at] = found;
    AT(logprob)[at] = usable_one(LOAD(AT(logits), at * n + found)) - AT(whole)[at];
  }
}
#endif
