"""LSTM: a recurrent op with a state that gates let in, out and forget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import Array
from clrt.ops.base import Sample, register
from clrt.ops.recurrent import Function, Recurrent, sample_inputs
from clrt.ops.recurrent_walk import Walk, variants


@register
@dataclass(frozen=True)
class LSTM(Recurrent):
    """Gates in the order i, o, f, c; further inputs initial_c and P, a further output Y_c.

    i = f(i + P_i C), f = f(f + P_f C) or 1 - i (input_forget), C' = f C + i g(c),
    o = f(o + P_o C'), H' = o h(C'). As in ONNX Runtime, `clip` leaves C' alone.

    Source: ONNX LSTM, opset 1 to 22.
    """

    input_forget: int = 0

    gates = 4
    states = 2
    defaults = ("Sigmoid", "Tanh", "Tanh")
    unclipped = 2
    entry = "lstm"
    variants = variants(Walk)

    def features(self) -> dict[str, int]:
        return {"F_COUPLED": int(bool(self.input_forget))}

    def cell(
        self,
        x: Array,
        states: list[Array],
        r: Array,
        bias: Array,
        peephole: Array,
        act: list[Function],
    ) -> list[Array]:
        h, c = states
        i, o, f, g = (x[:, k] + h @ r[k].T + bias[0, k] + bias[1, k] for k in range(4))
        i = act[0](i + peephole[0] * c)
        f = 1 - i if self.input_forget else act[0](f + peephole[2] * c)
        c = f * c + i * act[1](g)
        return [act[0](o + peephole[1] * c) * act[2](c), c]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        some = ("HardSigmoid", "Softsign", "Relu")
        for op, optional in [
            (cls(), (False,) * 5),
            (cls(direction="reverse", layout=1, clip=0.5), (True, True, True, False, True)),
            (cls(direction="bidirectional"), (True,) * 5),
            (cls(direction="bidirectional", layout=1, input_forget=1,
                 activations=(*cls.defaults, *some)), (True, False, False, True, False)),
        ]:  # fmt: skip
            yield Sample(op, sample_inputs(cls, (4, 3, 5, 7), op, optional))
        op = cls(direction="bidirectional")
        yield Sample(op, sample_inputs(cls, (2, 1, 3, 26), op, (True, False, False, False, False)))
        for dtype in (np.float16, np.float64):
            yield Sample(cls(), sample_inputs(cls, (3, 2, 4, 5), cls(), (True,) * 5, dtype))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        good = sample_inputs(cls, (4, 3, 5, 7), cls(), (True,) * 5)
        yield Sample(cls(layout=1), good), ShapeError
        yield Sample(cls(), (*good[:7], np.zeros((1, 7), np.float32))), ShapeError
