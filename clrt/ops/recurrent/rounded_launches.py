"""Launches of DynamicQuantizeLSTM, which rounds X, and the states of each step, to 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array
from clrt.kernels.gemm_int8_cpu import Int8Weights, emit_integers, unsigned
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand
from clrt.kernels.spec import (
    Buffer,
    BufferArg,
    KernelSpec,
    Launch,
    PackedWeight,
    Scratch,
    launch,
    unread_arg,
)
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.pointwise.dynamic_quantize_linear import quantize_launches
from clrt.ops.recurrent.recurrent_launches import RecurrentLaunches
from clrt.ops.recurrent.time_step_launches import TimeStepLaunches
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

# Gates of an LSTM.
_GATES = 4
_LANES = 8
"""States of a panel: their gates fill the BYTE_WIDTH columns of a panel."""
# Rows of a tile, the tunable T_MR of the kernel of 8-bit weights.
_TILE_ROWS = 8
# Bytes that the kernel stores after the quantized elements of a row (BYTE_ROW of
# recurrent_bytes.clh).
_ROW_BYTES = 12


class RoundPartition(Thresholds):
    """Threshold of the rounding of states and inputs of DynamicQuantizeLSTM."""

    items: int = tunable(
        64,
        "work-items",
        "Maximum per work-group, which rounds adjacent elements: more need more barriers.",
    )

    group: ClassVar = "round_shares"


def rows_together(batch: int, hidden: int) -> int:
    """Returns the number of sequences whose states are rounded to 8 bits by one common range.

    That is all sequences if `batch` <= 4 and `hidden` > 256, else 1, as in ONNX Runtime with as
    many threads as sequences.

    Args:
        batch: Number of sequences.
        hidden: Hidden size.
    """
    return batch if batch <= 4 and hidden > 256 else 1


@dataclass(frozen=True)
class GateBytes(Int8Weights):
    """Constant 8-bit LSTM weights `[D, K, 4 H]` in panels; a panel has the 4 gates of 8 states.

    K is the input size for W, and the hidden size for R.

    Attributes:
        zeros: Zero points, `[D]` or `[D, 4 H]`.
        scales: float32 scales, in the shape of the zero points.
        directions: Number of directions, D.
        hidden: Hidden size, H.
    """

    scales: Value
    directions: int
    hidden: int

    @classmethod
    def of(cls, node: Node, index: int) -> GateBytes:
        """Creates the packed weights of a DynamicQuantizeLSTM node from input 1 (W) or 2 (R)."""
        value, (scales, zeros) = node.arg(index), _parameters(node, index)
        directions, depth, wide = value.dims
        hidden = wide // _GATES
        columns = directions * round_up(hidden, _LANES) * _GATES
        return cls(depth, columns, False, value, zeros, scales, directions, hidden)

    @property
    def about(self) -> str:
        return f"gates:{self.scales.name}:{super().about}"

    def columns(self, array: Array) -> Array:
        return self._by_panel(unsigned(array))

    def by_column(self, numbers: Array) -> Array:
        whole = numbers.reshape(self.directions, 1, -1)
        wide = np.broadcast_to(whole, (self.directions, 1, _GATES * self.hidden))
        return self._by_panel(wide)[:, 0]

    def _by_panel(self, array: Array) -> Array:
        """Reorders weights `[D, K, 4 H]` to `[N, K]`, whose rows are the columns of the panels.

        The hidden states H are zero-padded to a multiple of `_LANES`, so that N is at least 4 D H,
        for D directions. K is the summed axis.
        """
        directions, depth, _ = array.shape
        blocks = ceil_div(self.hidden, _LANES)
        padded = np.zeros((directions, depth, _GATES, blocks * _LANES), array.dtype)
        padded[..., : self.hidden] = array.reshape(directions, depth, _GATES, self.hidden)
        split = padded.reshape(directions, depth, _GATES, blocks, _LANES)
        return split.transpose(0, 3, 2, 4, 1).reshape(self.n, depth)

    def scale_columns(self, columns: Array) -> None:
        scales = self.scales.numbers
        assert scales is not None
        columns[2] = np.ascontiguousarray(self.by_column(scales)).view(np.int32)


def _parameters(node: Node, index: int) -> tuple[Value, Value]:
    """Returns the scales and the zero points of the weights in input 1 (W) or 2 (R) of a node."""
    return node.arg(6 + 2 * index), node.arg(7 + 2 * index)


class Int8TimeStepLaunches(TimeStepLaunches):
    """Emits the launches of DynamicQuantizeLSTM by the kernel recurrent_steps (8-bit weights)."""

    def __init__(self, node: Node, ctx: Lowering) -> None:
        super().__init__(node, ctx)
        self.tunables = {"T_MR": _TILE_ROWS, "T_VW": _LANES}
        self.weights = GateBytes.of(node, 1)

    def _spec(self, **macros: int) -> KernelSpec:
        return super()._spec(BYTES=1, DOT_ISA=int(VNNI_INT8 in self.ctx.caps.matrix_shapes))

    def _inputs(self, spec: KernelSpec) -> tuple[list[Launch], dict[str, Any]]:
        """Returns the launches that multiply X by W, and the kernel arguments of X and W.

        There are no launches if the kernel recurrent_steps multiplies X by W itself.
        """
        x, w = self.node.arg(0), self.weights
        args = {"gx": unread_arg(x), "x": x, "w": w.packed, "x_scale": unread_arg(x)}
        if self.depth:
            return [], args
        levels, scale = self.ctx.scratch(prod(x.dims), DType.UINT8), self.ctx.scratch(1)
        zero = self.ctx.scratch(1, DType.UINT8)
        launches = quantize_launches(x, levels, scale, zero, self.ctx, self.node.input(4))
        rows = self.time * self.batch
        gx = self.ctx.scratch(rows * w.n, DType.INT32)
        left = MatrixOperand(BufferArg(levels), (w.k, 1))
        right = MatrixOperand(BufferArg(w.packed), (w.n, 1))
        sizes = ((), rows, w.n, w.k)
        product = GemmProblem(gx, DType.UINT8, *sizes, left, right, weights=w)
        launches += emit_integers(product, zero, self.ctx)
        return launches, {**args, "gx": gx, "x": unread_arg(x), "x_scale": scale}

    def _packed(
        self, spec: KernelSpec, weights: Value, depth: int
    ) -> tuple[list[Launch], BufferArg]:
        assert weights is self.node.arg(2)
        return [], BufferArg(GateBytes.of(self.node, 2).packed)

    def _gate_elems(self, steps: int) -> int:
        return steps * self.batch * self.weights.n

    def _others(self) -> dict[str, Any]:
        """Returns the kernel arguments that only 8-bit weights need, by name."""
        row_bytes = sum(round_up(k, 4) + _ROW_BYTES for k in (self.hidden, self.depth))
        shared = self.sharing
        rows = shared.teams * shared.parts * shared.height
        return {
            "records": self.ctx.scratch(rows * row_bytes, DType.UINT8),
            "together": int(rows_together(self.batch, self.hidden) > 1),
            "directions": self.directions,
            "w_depth": self.weights.k,
        }


class RoundedLaunches(RecurrentLaunches):
    """Emits the launches of DynamicQuantizeLSTM with float GEMMs.

    Each time step rounds the states to 8 bits, multiplies them by dequantized weights, and runs a
    gate kernel.
    """

    def multiply_inputs(self) -> tuple[Scratch, list[Launch]]:
        x, lens = self.node.arg(0), self.node.input(4)
        depth, wide, rows = x.dims[2], _GATES * self.hidden, self.time * self.batch
        rounded = self.ctx.scratch(rows * depth)
        gx = self.gate_scratch(self.directions * rows * wide)
        whole = {"y": rounded, "x": x, "n": rows * depth}
        sizes = {"width": self.batch * depth, "step": 0}
        launches = [self._round(1, 1, whole, lens, sizes)] if depth else []
        view = MatrixOperand(BufferArg(rounded), (0, depth, 1))
        return gx, [*launches, *self._product(gx, view, self._floats(1), rows, wide, depth)]

    def weight_steps(self, n: int, k: int) -> tuple[int, int]:
        return n, 1

    def step(
        self, gx: Scratch, states: list[Buffer]
    ) -> tuple[list[Launch], Callable[[int], list[Launch]]]:
        gh, rounded = (
            self.gate_scratch(_GATES * self.state_elems),
            self.ctx.scratch(self.state_elems),
        )
        setup, product = self.recur(gh, rounded, self._floats(2), _GATES)
        tensors = {"gh": gh, "hidden": states[0], "cell": states[1]}
        together = rows_together(self.batch, self.hidden)
        part = {"y": rounded, "x": states[0], "n": together * self.hidden}
        groups, lens = self.directions * self.batch // together, self.node.input(4)

        def launches(s: int) -> list[Launch]:
            sizes = {"width": self.hidden, "step": s}
            rounding = self._round(groups, 0, part, lens, sizes)
            return [rounding, *product, self.kernel(self.op.entry, s, gx, **tensors)]

        return setup, launches

    def _round(
        self,
        groups: int,
        inputs: int,
        args: Mapping[str, Any],
        lens: Value | None,
        sizes: Mapping[str, int],
    ) -> Launch:
        """Returns the launch that rounds float elements of X or the states to 256 levels.

        The results are float32, as after quantization to uint8 and dequantization. Each work-group
        rounds `n` adjacent elements; its levels span the range of these elements and 0.

        Args:
            groups: Number of work-groups.
            inputs: Macro S_INPUTS: 1 for X, 0 for states.
            args: Kernel arguments: output y, input x, and n, the elements per work-group.
            lens: Lengths of the sequences; None if all have T steps. For the range, X counts up to
                the end of the longest sequence, and states of sequences that have not ended.
            sizes: Kernel arguments `width` (elements per time step of X, or per sequence of a
                state) and `step` (index of the time step); ignored if `lens` is None.
        """
        items, most = 1, self.ctx.thresholds(RoundPartition).items
        while 2 * items <= min(most, self.ctx.caps.max_work_group_size):
            items *= 2
        lens_args: dict[str, Any] = {}
        if lens is not None:
            lens_args = {"lens": lens, "T": self.time, "B": self.batch, **sizes}
        spec = KernelSpec.of(
            "recurrent/round_rows.cl",
            "round_rows",
            T_ITEMS=items,
            S_INPUTS=inputs,
            F_LENS=int(lens is not None),
            LENS_T=(DType.INT32 if lens is None else lens.dtype).cl,
        )
        return launch(spec, (groups * items,), (items,), **args, **lens_args)

    def _floats(self, index: int) -> PackedWeight:
        """Returns the weights in input 1 (W) or 2 (R), dequantized to float32 at load."""
        weights, (scales, zeros) = self.node.arg(index), _parameters(self.node, index)
        assert scales.numbers is not None and zeros.numbers is not None
        pack = partial(dequantized, scales=scales.numbers, zeros=zeros.numbers)
        return PackedWeight(
            weights, f"floats:{scales.name}:{zeros.name}", pack, 4 * prod(weights.dims)
        )


def dequantized(weights: Array, scales: Array, zeros: Array) -> Array:
    """Returns `(weights - zeros) * scales` as float32.

    Args:
        weights: 8-bit integers `[D, K, 4 H]`, for D directions, K inputs or states, and hidden size
            H.
        scales: `[D]` or `[D, 4 H]`.
        zeros: Zero points in the shape of `scales`.
    """
    shape = (weights.shape[0], 1, -1)
    centred = weights.astype(np.float32) - zeros.reshape(shape).astype(np.float32)
    return np.asarray(centred * scales.reshape(shape), np.float32)


def _emit_bytes(node: Node, ctx: Lowering) -> list[Launch]:
    return Int8TimeStepLaunches(node, ctx).launches()


def _reject_bytes(node: Node, caps: DeviceCaps) -> str | None:
    return None if node.arg(0).dims[2] else "for x of at least one column"


STEPS_BYTES = Variant("steps_bytes", _emit_bytes, _reject_bytes, requires.CPU)
