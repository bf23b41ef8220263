"""RNN: a recurrent op without gates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ModelError, ShapeError
from clrt.ir.op import Array
from clrt.ops.base import Sample, register
from clrt.ops.recurrent import ALPHA, Function, Recurrent, sample_inputs
from clrt.ops.recurrent_walk import Walk, variants


@register
@dataclass(frozen=True)
class RNN(Recurrent):
    """h' = f(x W^T + h R^T + bias). Source: ONNX RNN, opset 1 to 22."""

    variants = variants(Walk)

    def cell(
        self,
        x: Array,
        states: list[Array],
        r: Array,
        bias: Array,
        peephole: Array,
        act: list[Function],
    ) -> list[Array]:
        (h,) = states
        return [act[0](x[:, 0] + h @ r[0].T + bias[0, 0] + bias[1, 0])]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op, optional in [
            (cls(), (False, False, False)),
            (cls(direction="reverse", layout=1, clip=0.5), (True, True, False)),
            (cls(direction="bidirectional", activations=("Softsign", "Affine"),
                 activation_alpha=(0.5,), activation_beta=(0.1,)), (True, True, True)),
        ]:  # fmt: skip
            yield Sample(op, sample_inputs(cls, (4, 3, 5, 7), op, optional))
        # One activation of each, through two steps.
        for name in (*ALPHA, "Relu", "Softplus", "Sigmoid"):
            op = cls(activations=(name,))
            yield Sample(op, sample_inputs(cls, (2, 1, 2, 3), op, (True, False, True)))
        for dtype in (np.float16, np.float64):
            yield Sample(cls(), sample_inputs(cls, (3, 2, 4, 5), cls(), (True, True, True), dtype))
        for sizes in [(0, 2, 3, 4), (2, 0, 3, 4)]:
            yield Sample(cls(), sample_inputs(cls, sizes, cls(), (False, False, True)))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        good = sample_inputs(cls, (4, 3, 5, 7), cls(), (True, True, True))
        yield Sample(cls(activations=("Cos",)), good), ModelError
        yield Sample(cls(activations=("Tanh", "Tanh")), good), ModelError
        yield Sample(cls(direction="bidirectional"), good), ShapeError
        yield Sample(cls(), (good[0], good[2], good[1])), ShapeError
