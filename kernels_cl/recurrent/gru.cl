// Elementwise operations of one GRU step. Layouts of gx, gh, hidden, y and the optional bias, lens
// and peephole: common/recurrent.clh. Gates in gx are ordered z r h (update, reset, candidate).
//   gru        h' = (1 - z) * candidate + z * h, written to hidden and y
//   gru_reset  (F_LINEAR 0, launched before gru) kept = r * h, written in the layout of hidden. The
//              host multiplies `kept` by the candidate's recurrence weights, into gn GATE_T [D, B,
//              H], which gru reads
// One work-item per (h, b, d): element of the state, sequence, direction.
//   F_LINEAR   ONNX linear_before_reset. 1: gh has three gates, that of the candidate is multiplied
//              by r, and gn is not read; 0: gh has the gates z and r only
//   FUNCTIONS  defines act_0 (gates z and r) and act_1 (candidate), functions of (direction, x)
#include "common/base.clh"
#ifndef FUNCTIONS
#define FUNCTIONS                                                      \
  static F act_0(const IDX_T d, F v) { return c_sigmoid(v); }          \
  static F act_1(const IDX_T d, F v) { return c_tanh(v); }
#define F_LINEAR 1
#endif
#include "common/recurrent.clh"

#define GRU_WIDTH (F_LINEAR ? 3 : 2)
__kernel void gru_reset(OUT(DATA_T, y), IN(GATE_T, gx), IN(GATE_T, gh), IN(DATA_T, hidden),
                        OUT(DATA_T, kept) PARAMS) {
  PLACE
  const GATE_T r = act_0(d, GATE(3, GRU_WIDTH, 1));
  STORE(AT(kept), state, r * LOAD(AT(hidden), state));
}

__kernel void gru(OUT(DATA_T, y), IN(GATE_T, gx), IN(GATE_T, gh), IN(GATE_T, gn),
                  INOUT(DATA_T, hidden) PARAMS) {
  PLACE SKIP_ENDED
  const GATE_T z = act_0(d, GATE(3, GRU_WIDTH, 0));
#if F_LINEAR
  const GATE_T r = act_0(d, GATE(3, GRU_WIDTH, 1));
  const GATE_T inner = r * (H_GATE(3, 2) + BIAS(3, 5));
#else
  const GATE_T inner = AT(gn)[(d * B + b) * H + h] + BIAS(3, 5);
#endif
  const GATE_T candidate = act_1(d, X_GATE(3, 2) + inner + BIAS(3, 2));
  const GATE_T next = (1 - z) * candidate + z * LOAD(AT(hidden), state);
  STORE(AT(hidden), state, next);
  STORE(AT(y), to, next);
}
