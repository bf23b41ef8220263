// Multinomial: samples class indices from softmax(x[row]), in two launches.
//   x     read: storage DATA_T [rows, classes], unnormalized log probabilities
//   sums  float32 [rows, classes]: written by the first kernel, read by the second
//   y     written: OUT_T [rows, samples], class indices
//   multinomial_sums  running sums of exp(x - max) of each row; one work-item per row
//   multinomial_draw  finds the class of a random number (common/philox.clh, key key_low, key_high)
//                     by binary search in the sums; one work-item per (sample, row)
#include "common/base.clh"
#include "common/math.clh"
#include "common/philox.clh"
#include "common/storage.clh"
#ifndef DATA_T
#define DATA_T float
#endif
#ifndef OUT_T
#define OUT_T int
#endif

__kernel void multinomial_sums(IN(DATA_T, x), OUT(float, sums), const IDX_T rows,
                               const IDX_T classes) {
  const IDX_T row = get_global_id(0);
  if (row >= rows) return;
  const IDX_T start = row * classes;
  float best = LOAD(AT(x), start);
  for (IDX_T i = 1; i < classes; ++i) best = c_max(best, LOAD(AT(x), start + i));
  float sum = 0;
  for (IDX_T i = 0; i < classes; ++i) {
    sum += c_exp((float)LOAD(AT(x), start + i) - best);
    AT(sums)[start + i] = sum;
  }
}

__kernel void multinomial_draw(IN(float, sums), OUT(OUT_T, y), const IDX_T rows,
                               const IDX_T classes, const IDX_T samples, const uint key_low,
                               const uint key_high) {
  const IDX_T sample = get_global_id(0), row = get_global_id(1);
  if (sample >= samples) return;
  const IDX_T at = row * samples + sample;
  __global const float *own = AT(sums) + row * classes;
  const float target = UNIFORM(random_word(at, key_low, key_high), 24) * own[classes - 1];
  IDX_T low = 0, high = classes - 1;  // the first class whose sum is over the target
  while (low < high) {
    const IDX_T middle = low + (high - low) / 2;
    if (own[middle] > target)
      high = middle;
    else
      low = middle + 1;
  }
  AT(y)[at] = (OUT_T)low;
}
