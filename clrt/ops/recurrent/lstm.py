"""LSTM: long short-term memory, a recurrent op with input, output and forget gates."""

from __future__ import annotations

from clrt.ir.op import Array
from clrt.ops.recurrent.recurrent import Cell, Recurrent
from clrt.ops.recurrent.recurrent_launches import RecurrentLaunches, variants
from clrt.ops.recurrent.sequence_launches import STEPS_CPU
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass


@register
@dataclass(frozen=True)
class LSTM(Recurrent):
    """Long short-term memory with gates in the order i (input), o (output), f (forget), c (cell).

    Inputs besides those of `Recurrent`: initial_c `[D, B, H]` and peephole weights P `[D, 3 H]`,
    for D directions, B sequences and hidden size H. Additional output: Y_c `[D, B, H]`.

    In each step, i, o, f and c are the sums of x W^T, H R^T and the biases, one per gate. With the
    activations a0, a1 and a2, the hidden state H and the cell state C become H' and C':

    I = a0(i + P_i C); F = a0(f + P_f C), or 1 - I with input_forget; C' = F C + I a1(c); O = a0(o +
    P_o C'); H' = O a2(C'). As in ONNX Runtime, C' is not clipped.

    Attributes:
        input_forget: 1: the forget gate F is 1 - I.

    Source: ONNX LSTM, opset 1 to 22.
    """

    input_forget: int = 0

    gates = 4
    states = 2
    defaults = ("Sigmoid", "Tanh", "Tanh")
    unclipped = 2
    entry = "lstm"
    variants = (STEPS_CPU, *variants(RecurrentLaunches))

    def features(self) -> dict[str, int]:
        return {"F_COUPLED": int(bool(self.input_forget))}

    def step(self, x: Array, states: list[Array], cell: Cell) -> list[Array]:
        h, c = states
        i, o, f, g = (
            x[:, k] + h @ cell.r[k].T + cell.bias[0, k] + cell.bias[1, k] for k in range(4)
        )
        i = cell.act[0](i + cell.peephole[0] * c)
        f = 1 - i if self.input_forget else cell.act[0](f + cell.peephole[2] * c)
        c = f * c + i * cell.act[1](g)
        return [cell.act[0](o + cell.peephole[1] * c) * cell.act[2](c), c]
