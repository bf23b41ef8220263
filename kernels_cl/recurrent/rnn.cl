// Elementwise operations of one RNN step, h' = f(x W^T + h R^T + bias), written to hidden and y.
// Layouts of gx, gh, hidden, y and the optional bias, lens and peephole: common/recurrent.clh. gx
// is x W^T, gh is h R^T.
// One work-item per (h, b, d): element of the state, sequence, direction.
//   FUNCTIONS  defines act_0, the activation f, a function of (direction, x)
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
