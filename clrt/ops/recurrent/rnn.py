"""RNN: a simple recurrent op without gates."""

from __future__ import annotations

from clrt.ir.op import Array
from clrt.ops.recurrent.recurrent import Cell, Recurrent
from clrt.ops.recurrent.recurrent_launches import RecurrentLaunches, variants
from clrt.ops.recurrent.sequence_launches import STEPS_CPU
from clrt.ops.registry import register


@register
class RNN(Recurrent):
    """Simple recurrent unit: h' = f(x W^T + h R^T + bias). Source: ONNX RNN, opset 1 to 22."""

    variants = (STEPS_CPU, *variants(RecurrentLaunches))

    def step(self, x: Array, states: list[Array], cell: Cell) -> list[Array]:
        (h,) = states
        return [cell.act[0](x[:, 0] + h @ cell.r[0].T + cell.bias[0, 0] + cell.bias[1, 0])]
