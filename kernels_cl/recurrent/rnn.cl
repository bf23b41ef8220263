// Elementwise part of one RNN step, h' = f(x W^T + h R^T + bias), into hidden and y
// (common/recurrent.clh has the operands' layouts): gx is x W^T, gh is h R^T. Work-item (h, b, d):
// state, sequence, direction.
//   FUNCTIONS  defines act_0, the activation f, of (direction, x)
#include "common/base.clh"
#ifndef FUNCTIONS
#define FUNCTIONS                                                      \
  static F act_0(const IDX_T d, F v) { return c_tanh(v); }
#endif
#include "common/recurrent.clh"

__kernel void rnn(OUT(DATA_T, y), IN(GATE_T, gx), IN(GATE_T, gh), OUT(DATA_T, hidden) PARAMS) {
  PLACE SKIP_ENDED
  const GATE_T next = act_0(d, GATE(1, 1, 0));
  STORE(AT(hidden), state, next);
  STORE(AT(y), to, next);
}
