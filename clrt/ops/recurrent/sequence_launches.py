"""LSTM, GRU and RNN of one sequence on CPUs by the kernel recurrent_sequence."""

from __future__ import annotations

from typing import Any, ClassVar

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Node
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, reject_but_float32
from clrt.ops.recurrent.recurrent import Recurrent
from clrt.ops.recurrent.time_step_launches import OPTIONAL_INPUTS, SUMS, TimeStepLaunches
from clrt.util.math import round_up

_SEQUENCE = tuned("recurrent_sequence", {"T_VW": (4, 8, 16)}, T_VW=8)


class SequenceLaunches(TimeStepLaunches):
    """Emits the launches of a recurrent node of one sequence by the kernel recurrent_sequence."""

    overlaps: ClassVar = True

    def __init__(self, node: Node, ctx: Lowering) -> None:
        super().__init__(node, ctx)
        self.lanes = ctx.tunables(_SEQUENCE)["T_VW"]

    @property
    def is_supported(self) -> bool:
        """Whether the kernel applies.

        It needs one sequence without a length, X W^T from a GEMM, at least `lanes` states, and one
        work-item per direction.
        """
        if self.batch != 1 or self.hidden < self.lanes or self.depth:
            return False
        return self.node.input(OPTIONAL_INPUTS["lens"]) is None and self.sharing.parts == 1

    def _spec(self, **macros: int) -> KernelSpec:
        op, node = self.op, self.node
        names = ("bias", "hidden", "cell", "peephole")
        return KernelSpec.of(
            "recurrent/recurrent_sequence.cl",
            "recurrent_sequence",
            **{f"F_{n.upper()}": int(node.input(OPTIONAL_INPUTS[n]) is not None) for n in names},
            **op.features(),
            T_VW=self.lanes,
            T_KS=SUMS[op.gates],
            GATES=op.gates,
            FUNCTIONS=self.functions(),
        )

    def _inputs(self, spec: KernelSpec) -> tuple[list[Launch], dict[str, Any]]:
        gx, product = self.multiply_inputs()
        return product, {"gx": gx}

    def _others(self) -> dict[str, Any]:
        if self.op.states == 1:
            return {}
        elems = self.directions * round_up(self.hidden, self.lanes)
        return {"cells": self.ctx.scratch(elems, self.dtype)}

    @property
    def step_sizes(self) -> dict[str, int]:
        return {name: self.sizes[name] for name in ("T", "H", "reverse", "y_t", "y_d")}


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    """Emits recurrent_sequence if it supports the node, else recurrent_steps."""
    sequence = SequenceLaunches(node, ctx)
    return (sequence if sequence.is_supported else TimeStepLaunches(node, ctx)).launches()


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    return node.op_as(Recurrent).reject_steps() or reject_but_float32(node, caps)


STEPS_CPU = Variant("steps_cpu", _emit, _reject, requires.CPU)
