"""GRU: a recurrent op with an update gate and a reset gate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from clrt.ir.graph import Node
from clrt.ir.op import Array
from clrt.kernels import gemm
from clrt.kernels.spec import Buffer, BufferArg, Launch, Lowering, Scratch
from clrt.kernels.strided import contiguous_strides, copy_launches
from clrt.ops.base import Sample, register
from clrt.ops.recurrent import Function, Recurrent, sample_inputs
from clrt.ops.recurrent_walk import Walk, variants


class _ResetWalk(Walk):
    """The form that resets the state before its product: two products in a step."""

    def step(
        self, gx: Scratch, states: list[Buffer]
    ) -> tuple[list[Launch], Callable[[int], list[Launch]]]:
        zr, zr_copy = self._part(0, 2)
        n, n_copy = self._part(2, 1)
        gates, candidate = (self.gate_scratch(k * self.state_elems) for k in (2, 1))
        kept = self.ctx.scratch(self.state_elems, self.dtype)
        *setup, first = self.recur(gates, states[0], zr, 2)
        *more, second = self.recur(candidate, kept, n, 1)
        return [zr_copy, n_copy, *setup, *more], lambda s: [
            first,
            self.kernel("gru_reset", s, gx, (gates, states[0], kept)),
            second,
            self.kernel("gru", s, gx, (gates, candidate, states[0])),
        ]

    def _part(self, first: int, gates: int) -> tuple[Scratch, Launch]:
        """Some gates of R on their own, and what copies them."""
        r, square = self.node.arg(2), self.hidden * self.hidden
        part = self.ctx.scratch(self.directions * gates * square, self.dtype)
        shape = (self.directions, gates * square)
        source = BufferArg(r, first * square)
        strides = (3 * square, 1)
        target = contiguous_strides(shape)
        (copy,) = copy_launches(
            self.ctx, source, BufferArg(part), self.dtype, shape, strides, target
        )
        return part, copy


class _LinearWalk(Walk):
    def step(
        self, gx: Scratch, states: list[Buffer]
    ) -> tuple[list[Launch], Callable[[int], list[Launch]]]:
        gates = self.gate_scratch(3 * self.state_elems)
        *setup, product = self.recur(gates, states[0], self.node.arg(2), 3)
        return setup, lambda s: [product, self.kernel("gru", s, gx, (gates, gates, states[0]))]


def _walk(node: Node, ctx: Lowering, emit: gemm.EmitProduct) -> Walk:
    assert isinstance(node.op, GRU)
    return (_LinearWalk if node.op.linear_before_reset else _ResetWalk)(node, ctx, emit)


@register
@dataclass(frozen=True)
class GRU(Recurrent):
    """Gates in the order z, r, h: H' = (1 - z) g(h) + z H.

    The candidate h is x W_h + (r H) R_h, or x W_h + r (H R_h) with linear_before_reset.

    Source: ONNX GRU, opset 1 to 22.
    """

    linear_before_reset: int = 0

    gates = 3
    defaults = ("Sigmoid", "Tanh")
    entry = "gru"
    variants = variants(_walk)

    def features(self) -> dict[str, int]:
        return {"F_LINEAR": int(bool(self.linear_before_reset))}

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
        z, reset = (act[0](x[:, k] + h @ r[k].T + bias[0, k] + bias[1, k]) for k in range(2))
        if self.linear_before_reset:
            inner = reset * (h @ r[2].T + bias[1, 2])
        else:
            inner = (reset * h) @ r[2].T + bias[1, 2]
        return [(1 - z) * act[1](x[:, 2] + inner + bias[0, 2]) + z * h]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for linear in (0, 1):
            for op, optional in [
                (cls(linear_before_reset=linear), (False,) * 3),
                (cls(direction="reverse", layout=1, clip=0.5, linear_before_reset=linear),
                 (True, True, False)),
                (cls(direction="bidirectional", linear_before_reset=linear,
                     activations=("Sigmoid", "Tanh", "HardSigmoid", "Softsign")), (True,) * 3),
            ]:  # fmt: skip
                yield Sample(op, sample_inputs(cls, (4, 3, 5, 7), op, optional))
            op = cls(linear_before_reset=linear, layout=1)
            yield Sample(op, sample_inputs(cls, (2, 1, 3, 26), op, (True, False, True)))
            yield Sample(op, sample_inputs(cls, (3, 2, 4, 5), op, (True,) * 3, np.float16))
