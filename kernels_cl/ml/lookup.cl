// LabelEncoder: y[i] = values[k] if x[i] equals keys[k], else fallback[0].
//   x       read: DATA_T [n];  keys  read: DATA_T [count], sorted. NaN sorts after every number,
//           and matches NaN
//   values  read: VALUE_T [count];  fallback  read: VALUE_T [1];  y  written: VALUE_T [n]. VALUE_T
//           is an unsigned integer type of the values' size
// One work-item per element of x, by binary search.
#include "common/base.clh"
#ifndef DATA_T
#define DATA_T float
#define VALUE_T uint
#endif
#define BEFORE(a, b) ((a) < (b) || ((b) != (b) && (a) == (a)))

__kernel void lookup(IN(DATA_T, x), IN(DATA_T, keys), IN(VALUE_T, values), IN(VALUE_T, fallback),
                     OUT(VALUE_T, y), const IDX_T n, const IDX_T count) {
  const IDX_T i = get_global_id(0);
  if (i >= n) return;
  const DATA_T v = AT(x)[i];
  IDX_T low = 0, high = count;  // the first key that is not before v
  while (low < high) {
    const IDX_T middle = low + (high - low) / 2;
    if (BEFORE(AT(keys)[middle], v))
      low = middle + 1;
    else
      high = middle;
  }
  const int found = low < count && !BEFORE(v, AT(keys)[low < count ? low : 0]);
  AT(y)[i] = found ? AT(values)[low] : AT(fallback)[0];
}
