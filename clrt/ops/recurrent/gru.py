"""GRU: gated recurrent unit, a recurrent op with update and reset gates."""

from __future__ import annotations

from collections.abc import Callable

from clrt.ir.graph import Node
from clrt.ir.op import Array
from clrt.kernels import gemm_variants
from clrt.kernels.spec import Buffer, BufferArg, Launch, Scratch
from clrt.kernels.strided import contiguous_strides, copy_launches
from clrt.kernels.variant import Lowering
from clrt.ops.recurrent.recurrent import Cell, Recurrent
from clrt.ops.recurrent.recurrent_launches import RecurrentLaunches, variants
from clrt.ops.recurrent.sequence_launches import STEPS_CPU
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass


class _ResetLaunches(RecurrentLaunches):
    """Launches of a GRU with linear_before_reset = 0: two GEMMs per step.

    The first GEMM is for the gates z and r. The second, for the candidate state, reads the product
    of the reset gate and the state.
    """

    def step(
        self, gx: Scratch, states: list[Buffer]
    ) -> tuple[list[Launch], Callable[[int], list[Launch]]]:
        zr, zr_copy = self._part(0, 2)
        n, n_copy = self._part(2, 1)
        gates, candidate = (self.gate_scratch(k * self.state_elems) for k in (2, 1))
        reset_state = self.ctx.scratch(self.state_elems, self.dtype)
        setup, first = self.recur(gates, states[0], zr, 2)
        more, second = self.recur(candidate, reset_state, n, 1)
        return [zr_copy, n_copy, *setup, *more], lambda s: [
            *first,
            self.kernel("gru_reset", s, gx, gh=gates, hidden=states[0], kept=reset_state),
            *second,
            self.kernel("gru", s, gx, gh=gates, gn=candidate, hidden=states[0]),
        ]

    def _part(self, first: int, gates: int) -> tuple[Scratch, Launch]:
        """Copies the weights R of some gates to scratch memory.

        Args:
            first: Index of the first gate (0: z, 1: r, 2: h).
            gates: Number of gates.

        Returns:
            The scratch memory `[D, gates * H, H]`, for D directions and hidden size H, and the
            launch that copies.
        """
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


class _LinearLaunches(RecurrentLaunches):
    """Launches of a GRU with linear_before_reset = 1: one GEMM per step."""

    def step(
        self, gx: Scratch, states: list[Buffer]
    ) -> tuple[list[Launch], Callable[[int], list[Launch]]]:
        gates = self.gate_scratch(3 * self.state_elems)
        setup, product = self.recur(gates, states[0], self.node.arg(2), 3)
        tensors = {"gh": gates, "gn": gates, "hidden": states[0]}
        return setup, lambda s: [*product, self.kernel("gru", s, gx, **tensors)]


def _launches_of(node: Node, ctx: Lowering, emit: gemm_variants.EmitProduct) -> RecurrentLaunches:
    return (_LinearLaunches if node.op_as(GRU).linear_before_reset else _ResetLaunches)(
        node, ctx, emit
    )


@register
@dataclass(frozen=True)
class GRU(Recurrent):
    """Gated recurrent unit with gates in the order z, r, h: H' = (1 - z) g(h) + z H.

    H is the state before the step, H' the state after it, h the candidate, and g the second
    activation.

    Attributes:
        linear_before_reset: Formula of the candidate h, to which biases are added. 0: x W_h + (r H)
            R_h; 1: x W_h + r (H R_h).

    Source: ONNX GRU, opset 1 to 22.
    """

    linear_before_reset: int = 0

    gates = 3
    defaults = ("Sigmoid", "Tanh")
    entry = "gru"
    variants = (STEPS_CPU, *variants(_launches_of))

    def reject_steps(self) -> str | None:
        return None if self.linear_before_reset else "the candidate reads the state that is reset"

    def features(self) -> dict[str, int]:
        return {"F_LINEAR": int(bool(self.linear_before_reset))}

    def step(self, x: Array, states: list[Array], cell: Cell) -> list[Array]:
        (h,) = states
        z, reset = (
            cell.act[0](x[:, k] + h @ cell.r[k].T + cell.bias[0, k] + cell.bias[1, k])
            for k in range(2)
        )
        if self.linear_before_reset:
            inner = reset * (h @ cell.r[2].T + cell.bias[1, 2])
        else:
            inner = (reset * h) @ cell.r[2].T + cell.bias[1, 2]
        return [(1 - z) * cell.act[1](x[:, 2] + inner + cell.bias[0, 2]) + z * h]
