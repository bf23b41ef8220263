// Benchmarks of a device's peak rates, for vectors of LANES floats: multiply-adds in registers
// (fma_peak), matrix products of a CPU's matrix unit (unit_peak), memory copy and read (copy_peak,
// read_peak), and passes over data in a cache (cached_read, cached_update, cached_add). Buffers are
// plain pointers to vectors, without offsets. A work-item reads `count` vectors, and writes a
// result, so that the compiler keeps the work.
//   CONSECUTIVE  1: a work-item's vectors are adjacent, as suits a CPU; 0: those of all work-items
//                are interleaved
#include "common/base.clh"
#pragma OPENCL FP_CONTRACT ON
#ifndef LANES
#define LANES 4
#endif
#ifndef CONSECUTIVE  // a work-item reads vectors in a row, as suits a CPU
#define CONSECUTIVE 1
#endif
typedef CAT(float, LANES) vec;

// Latency times throughput of a multiply-add is 8 to 10 on CPUs; twelve chains with their operands
// fit into 16 registers. They are named variables, since an array may stay in memory; products and
// sums are separate for the compiler to contract, since a call of fma() may stay a call.
#define CHAINS(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
#define DECLARE(i) vec a##i = i;
#define STEP(i) a##i = a##i * x + y;
#define SUM(i) +a##i

__kernel void fma_peak(__global vec *out, const float factor, const float term, const int steps) {
  const vec x = factor, y = term;
  CHAINS(DECLARE)
  for (int i = 0; i < steps; ++i) {
    CHAINS(STEP)
  }
  out[get_global_id(0)] = CHAINS(SUM);
}

__kernel void copy_peak(__global const vec *in, __global vec *out) {
  const size_t i = get_global_id(0);
  out[i] = in[i];
}

__kernel void read_peak(__global const vec *in, __global vec *out, const int count) {
  const size_t item = get_global_id(0), items = get_global_size(0);
  const size_t first = CONSECUTIVE ? item * count : item, step = CONSECUTIVE ? 1 : items;
  vec a = 0, b = 0, c = 0, d = 0;
  for (size_t i = 0; i < count; i += 4) {
    __global const vec *at = in + first + i * step;
    a += at[0];
    b += at[step];
    c += at[2 * step];
    d += at[3 * step];
  }
  out[item] = a + b + c + d;
}

// Reads the same few bytes `times` times per launch, eight at a time to keep the units busy; the
// buffers may alias, so that the compiler cannot drop a pass.
#define EIGHT(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define AT_STEP(x, k) x[at + (k) * step]
#define START(k) vec s##k = 0;
#define READ(k) s##k += AT_STEP(x, k);
#define UPDATE(k) AT_STEP(x, k) *= factor;
#define ADD(k) AT_STEP(z, k) = AT_STEP(x, k) + AT_STEP(y, k);
#define TOTAL(k) +s##k
#define AGAIN(F)                                                                                 \
  const size_t item = get_global_id(0), items = get_global_size(0);                              \
  const size_t first = CONSECUTIVE ? item * count : item, step = CONSECUTIVE ? 1 : items;        \
  for (int t = 0; t < times; ++t)                                                                \
    for (int i = 0; i < count; i += 8) {                                                         \
      const size_t at = first + i * step;                                                        \
      EIGHT(F)                                                                                   \
    }

__kernel void cached_read(__global const vec *x, __global const vec *y, __global vec *z,
                          const int count, const int times, const float factor) {
  EIGHT(START)
  AGAIN(READ)
  z[item] = EIGHT(TOTAL);
}

__kernel void cached_update(__global vec *x, __global vec *y, __global vec *z, const int count,
                            const int times, const float factor) {
  AGAIN(UPDATE)
}

__kernel void cached_add(__global const vec *x, __global const vec *y, __global vec *z,
                         const int count, const int times, const float factor) {
  AGAIN(ADD)
}

#if USE_AMX
#include "common/matrix_unit.clh"

// Runs the CPU's matrix unit at its peak, to measure it: each of `steps` steps multiplies 24 pairs
// of bfloat16 tiles of zeros. Those are 4 products of float32 tiles, of 6 bfloat16 products each
// (common/amx_split_gemm.clh). Each work-item writes one result tile to `out`.
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void unit_peak(__global uint *out,
                                                                       const int steps) {
  MMA_START
  MMA_ZERO(0) MMA_ZERO(1) MMA_ZERO(2) MMA_ZERO(3)
  MMA_ZERO(4) MMA_ZERO(5) MMA_ZERO(6) MMA_ZERO(7)
  for (int i = 0; i < 6 * steps; ++i) {
    MMA_MULTIPLY(0, 4, 6) MMA_MULTIPLY(1, 4, 7) MMA_MULTIPLY(2, 5, 6) MMA_MULTIPLY(3, 5, 7)
  }
  MMA_STORE(0, out + get_global_id(0) * MMA_WORDS, MMA_SIDE)
  MMA_END
}
#endif
