// ScatterElements into y, which already holds x: combines y[.., indices[.., k, ..], ..] with
// updates[.., k, ..] by REDUCTION (common/scatter.clh).
//   indices  read: INDEX_T, updates  read: DATA_T, of equal shape: dims d0 to d5, strides u0 to u5
//            in elements; on the scattered axis d is 1 and u is 0, while its size is `length` and
//            its stride `walk`. An index out of range is clamped and reported in `status`
//   y  read and written: DATA_T, strides s0 to s5 in elements, 0 on the scattered axis, whose size
//      is n and whose stride is `step`
//   DATA_T  type of the elements; an unsigned integer type of their size if nothing is computed
// A work-item processes whole lines of the indices along the scattered axis (all k), one on GPUs:
// so no two work-items write one element, and updates apply in order. On CPUs a work-item has
// several lines, and lines that are adjacent in memory are processed together, so that memory is
// read in order.
#include "common/base.clh"
#include "common/axes.clh"
#include "common/index.clh"
#include "common/scatter.clh"
#ifndef DATA_T
#define DATA_T uint
#define INDEX_T long
#endif

__kernel void scatter_elements(IN(INDEX_T, indices), IN(DATA_T, updates), INOUT(DATA_T, y),
                               OUT(long, status), ELEMENT_PARAMS, const IDX_T n, const IDX_T step,
                               const IDX_T length, const IDX_T walk, PARAMS_6(s), PARAMS_6(u)) {
#if CPU
  EACH_RUN {
    const IDX_T PLACE_OF(row);
    const IDX_T i5 = 0, line = STRIDED(s), source = STRIDED(u);
    const IDX_T turns = walk == 1 ? stop - begin : length, each = walk == 1 ? length : stop - begin;
    for (IDX_T turn = 0; turn < turns; ++turn) {
      for (IDX_T within = 0; within < each; ++within) {
        const IDX_T k = walk == 1 ? within : turn, j = begin + (walk == 1 ? turn : within);
        const IDX_T from = source + j * u5 + k * walk;
        const IDX_T index = clrt_index((long)AT(indices)[from], n, AT(status));
        const IDX_T at = line + j * s5 + index * step;
        AT(y)[at] = COMBINE(AT(y)[at], AT(updates)[from]);
      }
    }
  }
#else
  FOR_EACH_ELEMENT {
    const IDX_T line = STRIDED(s);
    IDX_T from = STRIDED(u);
    for (IDX_T k = 0; k < length; ++k, from += walk) {
      const IDX_T at = line + clrt_index((long)AT(indices)[from], n, AT(status)) * step;
      AT(y)[at] = COMBINE(AT(y)[at], AT(updates)[from]);
    }
  }
#endif
}
