"""LSTM, GRU and RNN on CPUs by the kernel recurrent_steps, with many time steps per launch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.gemm_cpu import emit_cpu
from clrt.kernels.spec import (
    BufferArg,
    KernelSpec,
    Launch,
    PackedWeight,
    launch,
    optional,
    unread_arg,
)
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.ops.index_checks import check_launch
from clrt.ops.movement.common import fill_launch
from clrt.ops.recurrent.recurrent_launches import RecurrentLaunches
from clrt.util.math import ceil_div, round_up

STEPS = tuned("recurrent_steps", {"T_MR": (2, 3, 4, 6), "T_VW": (4, 8, 16)}, T_MR=2, T_VW=8)
_SOURCE = "recurrent/recurrent_steps.cl"
# Independent sums over K per gate for a single sequence, by the number of gates: they hide the
# latency of additions.
SUMS = {4: 2, 3: 2, 1: 8}


class RecurrentPartition(Thresholds):
    """Thresholds of the partition of a recurrent op's time steps into work-groups and launches."""

    part_kflop: int = tunable(
        100,
        "thousand FLOPs",
        "Minimum work per core and time step if several cores share the work of a step.",
    )
    launch_mflop: int = tunable(
        1000,
        "million FLOPs",
        "Approximate maximum per launch: a run can be cancelled only between launches.",
    )
    inner_steps: int = tunable(
        2,
        "time steps",
        "Maximum number for which the kernel itself multiplies X by W; for more, one GEMM "
        "multiplies X of all steps by W first.",
    )

    group: ClassVar = "recurrent_shares"


class _Sharing(NamedTuple):
    """Partition of a time step of a recurrent op among work-items.

    Attributes:
        flops: Floating-point operations of a step.
        height: Sequences per stripe, a multiple of T_MR.
        teams: Number of stripes of all directions, each computed by a team of work-items.
        span: Blocks of T_VW states that a work-item of a team computes.
        parts: Number of work-items of a team, which divide the hidden states of a stripe.
    """

    flops: int
    height: int
    teams: int
    span: int
    parts: int


class TimeStepLaunches(RecurrentLaunches):
    """Emits the launches of a recurrent node by the kernel recurrent_steps.

    Attributes:
        overlaps: Whether the last block of packed weights holds the last `lanes` states, which may
            repeat states of the block before; if False, it is zero-padded.
        shares: Thresholds of the partition into work-groups and launches.
        tunables: Tunables of the kernel recurrent_steps.
        lanes: States per block of packed weights.
        depth: Columns I of X if the kernel multiplies X by W; 0 if a GEMM does.
    """

    overlaps: ClassVar = False

    def __init__(self, node: Node, ctx: Lowering) -> None:
        super().__init__(node, ctx, emit_cpu)
        self.shares = ctx.thresholds(RecurrentPartition)
        self.tunables = ctx.tunables(STEPS)
        self.lanes = self.tunables["T_VW"]
        depth = node.arg(0).dims[2]
        self.depth = depth if self.time <= self.shares.inner_steps else 0

    @cached_property
    def sharing(self) -> _Sharing:
        """Partition of a time step among work-items.

        The partition is meaningless if there are no sequences, no hidden states or no directions.
        """
        cores, rows = self.ctx.caps.compute_units, self.tunables["T_MR"]
        wide = self.op.gates * self.hidden
        flops = 2 * self.directions * self.batch * wide * (self.hidden + self.depth)
        blocks, tiles = ceil_div(self.hidden, self.tunables["T_VW"]), ceil_div(self.batch, rows)
        height = ceil_div(tiles, clamp(ceil_div(cores, self.directions), 1, tiles)) * rows
        teams = self.directions * ceil_div(self.batch, height)
        worthwhile = flops // max(1000 * self.shares.part_kflop * teams, 1)
        max_parts = min(cores // teams, worthwhile)
        span = ceil_div(blocks, max(max_parts, 1))
        return _Sharing(flops, height, teams, span, ceil_div(blocks, span))

    @property
    def is_team(self) -> bool:
        """Whether teams of several work-items exchange states between time steps."""
        return self.sharing.parts > 1 and self.time > 1

    def launches(self) -> list[Launch]:
        """Returns all launches of the node.

        The result is [] if the states have no elements. If there are no time steps, the launches
        only set the initial states and check the sequence lengths.
        """
        node, r = self.node, self.node.arg(2)
        if not self.state_elems or not self.time:
            return super().launches()
        launches = []
        if node.input(4) is not None:
            launches.append(check_launch(node, 4, self.time, "a sequence length"))
        spec = self._spec()
        setup, inputs = self._inputs(spec)
        packing, states = self._packed(spec, r, self.hidden)
        tensors = {**inputs, "r": states, **self._states(), **self._others()}
        return [*launches, *setup, *packing, *self._steps(spec, tensors)]

    def _spec(self, **macros: int) -> KernelSpec:
        """Returns the kernel with macros for the op's options and the inputs that are present."""
        op, node = self.op, self.node
        lens = node.input(4)
        optionals = {name: node.input(i) for name, i in OPTIONAL_INPUTS.items()}
        return KernelSpec.of(
            _SOURCE,
            "recurrent_steps",
            **self.tunables,
            **{f"F_{name.upper()}": int(value is not None) for name, value in optionals.items()},
            **op.features(),
            **(macros or {"BYTES": 0}),
            GATES=op.gates,
            T_KS=SUMS[op.gates],
            S_TEAM=int(self.is_team),
            S_WHOLE=int(self.hidden % self.tunables["T_VW"] == 0),
            LENS_T=(DType.INT32 if lens is None else lens.dtype).cl,
            FUNCTIONS=self.functions(),
        )

    def _inputs(self, spec: KernelSpec) -> tuple[list[Launch], dict[str, Any]]:
        """Prepares the product X W^T for the kernel of the time steps.

        If `depth` is 0, a GEMM computes the product; else the kernel does, and W is packed for it.

        Args:
            spec: Kernel of the time steps; the packing kernel shares its source and macros.

        Returns:
            The launches of the GEMM or of the packing, and the kernel arguments gx, x and w.
        """
        x, w = self.node.arg(0), self.node.arg(1)
        if self.depth:
            packing, panels = self._packed(spec, w, self.depth)
            return packing, {"gx": unread_arg(x), "x": x, "w": panels}
        gx, product = self.multiply_inputs()
        return product, {"gx": gx, "x": unread_arg(x), "w": unread_arg(x)}

    def _packed(
        self, spec: KernelSpec, weights: Value, depth: int
    ) -> tuple[list[Launch], BufferArg]:
        """Packs W or R for the kernel: a constant when the model is loaded, else by a launch.

        Args:
            spec: Kernel of the time steps; the packing kernel shares its source and macros.
            weights: W or R, `[directions, gates * hidden size, K]`.
            depth: Columns K of the weights.

        Returns:
            The packing launches ([] for a constant), and the packed weights.
        """
        lanes, gates = self.lanes, self.op.gates
        wide = round_up(self.hidden, lanes)
        elems = self.directions * wide * gates * depth
        if weights.is_constant and weights.has_numbers:
            layout = f"gates{gates}x{lanes}:{self.hidden}x{depth}"
            if self.overlaps and wide > self.hidden:
                layout = f"overlapping_{layout}"
            pack = partial(pack_gates, gates=gates, lanes=lanes, overlaps=self.overlaps)
            nbytes = elems * weights.dtype.itemsize
            return [], BufferArg(PackedWeight(weights, layout, pack, nbytes))
        target = BufferArg(self.ctx.scratch(elems))
        groups = self.directions * wide // lanes
        kernel = KernelSpec(spec.source, "pack_gates", spec.defines)
        sizes = {"H": self.hidden, "K": depth}
        return [launch(kernel, (groups,), (1,), y=target, x=weights, **sizes)], target

    def _states(self) -> dict[str, Any]:
        """Returns the kernel arguments of the outputs, the states and the optional inputs."""
        node, states = self.node, {}
        for index, name in enumerate(("hidden", "cell")[: self.op.states], start=1):
            output = node.outputs[index] if index < len(node.outputs) else None
            states[name] = output or self.ctx.scratch(self.state_elems, self.dtype)
        inputs = {
            f"first_{n}" if n in states else n: node.input(i) for n, i in OPTIONAL_INPUTS.items()
        }
        return {"y": node.output, **states, **optional(**inputs)}

    def _others(self) -> dict[str, Any]:
        """Returns kernel arguments that only a subclass needs, by name; {} by default."""
        return {}

    @property
    def step_sizes(self) -> dict[str, int]:
        """Size and stride arguments of the kernel, by parameter name."""
        partition = {"height": self.sharing.height, "span": self.sharing.span}
        return {**self.sizes, **partition, "depth": self.depth}

    def _gate_elems(self, steps: int) -> int:
        """Returns the number of elements of X W^T that `steps` time steps read."""
        return steps * self.state_elems * self.op.gates

    def _steps(self, spec: KernelSpec, tensors: Mapping[str, Any]) -> list[Launch]:
        """Emits the launches of kernel `spec` for all time steps, several steps per launch.

        A launch has at most about `launch_mflop` million floating-point operations, or one step.

        Args:
            tensors: Tensor arguments of the kernel, for all time steps.
        """
        shared = self.sharing
        steps = max(self.shares.launch_mflop * 1_000_000 // shared.flops, 1)
        launches = []
        if self.is_team:
            elems = shared.teams * (shared.parts + 1)
            board = BufferArg(self.ctx.scratch(elems, DType.INT32))
            launches.append(fill_launch(board, DType.INT32, elems, 0, self.ctx))
            tensors = {**tensors, "board": board}
        starts = range(0, self.time, steps) if steps < self.time else (0,)
        ends = ((s, min(s + steps, self.time)) for s in starts)
        for s, e in ends:
            part = {"y": BufferArg(self.node.output, 0, (e - s) * self.state_elems)}
            if not self.depth:
                part["gx"] = BufferArg(tensors["gx"], 0, self._gate_elems(e - s))
            args = {**tensors, **part, **self.step_sizes, "step": s, "end": e}
            groups = shared.teams * shared.parts
            launches.append(launch(spec, (groups,), (1,), shared.flops * (e - s), **args))
        return launches


# Indices of the optional inputs.
OPTIONAL_INPUTS = {"bias": 3, "lens": 4, "hidden": 5, "cell": 6, "peephole": 7}


def pack_gates(weights: Array, gates: int, lanes: int, overlaps: bool = False) -> Array:
    """Packs weights `[D, gates * H, K]` as `[D, ceil(H / lanes), K, gates, lanes]`.

    Args:
        weights: W or R of D directions; K is the summed axis.
        gates: Number of gates.
        lanes: States per block.
        overlaps: Whether the last block has the last `lanes` of the H hidden states, some of which
            are also in the block before it; else it is zero-padded to `lanes` states.
    """
    directions, wide, depth = weights.shape
    hidden = wide // gates
    starts = np.arange(0, hidden, lanes)
    padded = np.zeros((directions, gates, len(starts) * lanes, depth), weights.dtype)
    padded[:, :, :hidden] = weights.reshape(directions, gates, hidden, depth)
    if overlaps:
        starts = np.minimum(starts, hidden - lanes)
    split = padded[:, :, starts[:, None] + np.arange(lanes)]
    return np.ascontiguousarray(split.transpose(0, 2, 4, 1, 3))
