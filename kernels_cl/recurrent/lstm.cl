// Elementwise operations of one LSTM step: updates cell and hidden, and writes hidden to y, too.
// Layouts of gx, gh, hidden, y and the optional bias, lens and peephole: common/recurrent.clh. gx
// and gh have four gates, i o f c (input, output, forget, cell).
// One work-item per (h, b, d): element of the state, sequence, direction.
//   FUNCTIONS  defines act_0 (gates i, o, f), act_1 (cell candidate), act_2 (cell output),
//              functions of (direction, x)
//   F_COUPLED  1: the forget gate is 1 - i
#include "common/base.clh"
#ifndef FUNCTIONS
#define FUNCTIONS                                                      \
  static F act_0(const IDX_T d, F v) { return c_sigmoid(v); }          \
  static F act_1(const IDX_T d, F v) { return c_tanh(v); }             \
  static F act_2(const IDX_T d, F v) { return c_tanh(v); }
#define F_COUPLED 0
#define F_PEEPHOLE 1
#define F_BIAS 1
#define F_LENS 1
#define DATA_T float
#define GATE_T float
#endif
#include "common/recurrent.clh"

__kernel void lstm(OUT(DATA_T, y), IN(GATE_T, gx), IN(GATE_T, gh), OUT(DATA_T, hidden),
                   INOUT(DATA_T, cell) PARAMS) {
  PLACE SKIP_ENDED
  const GATE_T old = LOAD(AT(cell), state);
  const GATE_T in = act_0(d, GATE(4, 4, 0) + PEEPHOLE(0) * old);
#if F_COUPLED
  const GATE_T forget = 1 - in;
#else
  const GATE_T forget = act_0(d, GATE(4, 4, 2) + PEEPHOLE(2) * old);
#endif
  const GATE_T c = forget * old + in * act_1(d, GATE(4, 4, 3));
  const GATE_T next = act_0(d, GATE(4, 4, 1) + PEEPHOLE(1) * c) * act_2(d, c);
  STORE(AT(cell), state, c);
  STORE(AT(hidden), state, next);
  STORE(AT(y), to, next);
}
