"""Pad: adds a border to a tensor; negative pads crop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from clrt.errors import ShapeError, UnsupportedError, counted
from clrt.ir.cl_code import Define
from clrt.ir.dims import Dim, provably_equal
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, indexed_args, launch
from clrt.kernels.strided import (
    MovePartition,
    axes,
    contiguous_strides,
    copy_launches,
    launch_places,
    pad_rank,
)
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import check_scalar, checked_sizes, need, normalize_axis
from clrt.ops.gradients.shapes import known_shape, scattered
from clrt.ops.movement.common import (
    elements,
    fill_from_launch,
    fill_launch,
    fresh_dims,
    has_input,
    host_ints,
    num_elements,
)
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, OnnxTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

Mode: TypeAlias = Literal["constant", "reflect", "edge", "wrap"]
MODES: dict[Mode, int] = {"constant": 0, "reflect": 1, "edge": 2, "wrap": 3}


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y = node.arg(0), node.output
    op = node.op_as(Pad)
    elems = num_elements(y.dims)
    if not elems:
        return []
    pads = host_ints(node, 1)
    assert pads is not None
    begins, ends = op.full_pads(len(x.dims), pads, host_ints(node, 3))
    strides = contiguous_strides(x.dims)
    # Negative pads crop first, which leaves a view of x.
    crop = [max(-b, 0) for b in begins]
    kept = [d - c - max(-e, 0) for d, c, e in zip(x.dims, crop, ends, strict=True)]
    lead = [max(b, 0) for b in begins]
    source = BufferArg(x, sum(c * s for c, s in zip(crop, strides, strict=True)))
    if op.mode != "constant":
        padded = [axis for axis, pads in enumerate(zip(begins, ends, strict=True)) if any(pads)]
        return [_mirror(source, node, kept, strides, lead[: max(padded, default=0) + 1], ctx)]
    launches = [] if kept == list(y.dims) else [_border(node, elems, ctx)]
    if all(k > 0 for k in kept):
        target_strides = contiguous_strides(y.dims)
        target = BufferArg(y, sum(b * s for b, s in zip(lead, target_strides, strict=True)))
        launches += copy_launches(ctx, source, target, x.dtype, kept, strides, target_strides)
    return launches


def _border(node: Node, elems: int, ctx: Lowering) -> Launch:
    """Returns the launch that fills the first `elems` output elements of a Pad by its pad value.

    The value is 0 by default.

    Raises:
        UnsupportedError: The pad value is computed at run time and has another dtype than x.
    """
    y, value = node.output, node.input(2)
    if value is None:
        return fill_launch(BufferArg(y), y.dtype, elems, 0, ctx)
    if value.numbers is not None:
        return fill_launch(BufferArg(y), y.dtype, elems, value.numbers.reshape(-1)[0], ctx)
    if value.dtype is not y.dtype:
        raise UnsupportedError(f"the value of {node} is {value.dtype}, the data {y.dtype}.")
    return fill_from_launch(BufferArg(y), y.dtype, elems, BufferArg(value), ctx)


def _mirror(
    source: BufferArg,
    node: Node,
    kept: Sequence[int],
    strides: Sequence[int],
    lead: Sequence[int],
    ctx: Lowering,
) -> Launch:
    """Returns the launch of Pad in the modes that repeat elements of x (reflect, edge, wrap).

    Args:
        source: First element of the cropped input.
        node: Pad node.
        kept: Shape of the cropped input.
        strides: Strides of x, in elements.
        lead: Elements added before each axis, up to the last padded axis; 0 where the pad is
            negative.
        ctx: Lowering context.

    Raises:
        UnsupportedError: The cropped input is empty.
    """
    y = node.output
    if any(k <= 0 for k in kept):
        raise UnsupportedError(f"{node} has an axis without elements to repeat.")
    mode: dict[str, Define] = {"DATA_T": y.dtype.cl_bits, "MODE": MODES[node.op_as(Pad).mode]}
    if ctx.caps.is_cpu:
        return _mirror_rows(source, y, kept, strides, lead, mode, ctx)
    full_lead = (*lead, *[0] * (len(kept) - len(lead)))
    steps = axes("k", kept, 1) | axes("s", strides, 0) | axes("b", full_lead, 0)
    kernel = KernelSpec.of("movement/pad.cl", "pad_mirror", **mode)
    return launch_places(kernel, y.dims, ctx, x=source, y=y, **steps)


def _mirror_rows(
    source: BufferArg,
    y: Value,
    kept: Sequence[int],
    strides: Sequence[int],
    lead: Sequence[int],
    mode: dict[str, Define],
    ctx: Lowering,
) -> Launch:
    """Returns the CPU launch of Pad in the modes that repeat elements of x (reflect, edge, wrap).

    Work-items copy parts of rows. A row extends along the last padded axis; each position in it
    holds the contiguous elements of the axes after it.

    Args:
        source: First element of the part of x that negative pads leave.
        y: Output.
        kept: Shape of the part of x that negative pads leave.
        strides: Strides of x, in elements.
        lead: Elements added before each axis, up to the last padded axis; 0 where the pad is
            negative.
        mode: Macros DATA_T and MODE.
        ctx: Lowering context.
    """
    rank, elems = len(lead), ctx.thresholds(MovePartition).elems
    inner = num_elements(y.dims[rank:])
    d = pad_rank(y.dims[:rank], 1)
    width = clamp(d[5], 1, ceil_div(elems, inner))
    height = clamp(num_elements(d[:5]), 1, ceil_div(elems, width * inner))
    size = (ceil_div(d[5], width) * ceil_div(num_elements(d[:5]), height),)
    steps = axes("k", kept[:rank], 1) | axes("s", strides[:rank], 0) | axes("b", lead, 0)
    steps |= indexed_args("d", d) | {"inner": inner, "height": height, "width": width}
    kernel = KernelSpec.of("movement/pad.cl", "pad_mirror_rows", CPU=1, **mode)
    return launch(kernel, size, (1,), x=source, y=y, **steps)


@register
@dataclass(frozen=True)
class Pad(Op):
    """Adds pads[i] elements before the i-th of r padded axes, and pads[r + i] elements after it.

    Inputs: x, pads, value (for mode "constant"; default: 0), and the padded axes (default: all).
    Negative pads crop.

    Attributes:
        mode: Source of the added elements: the value ("constant"), x mirrored at its border
            ("reflect"), the border of x ("edge"), or x repeated ("wrap").

    Source: ONNX Pad, opset 2 to 25; pads and value became inputs in 11.
    """

    mode: Mode = "constant"

    onnx_traits = OnnxTraits(attribute_to_input={"pads": (1, np.int64), "value": (2, np.float32)})
    input_traits = InputTraits(required=(1,), plan_time=(1, 3))
    accuracy = Accuracy.EXACT
    supported_storages = None
    variants = (Variant("strided", _emit),)

    def full_pads(
        self, rank: int, pads: Sequence[Dim], axes: Sequence[int] | None
    ) -> tuple[list[int], list[int]]:
        """Returns the number of elements added before every axis, and after every axis.

        The number is 0 for axes without pads, negative for cropped axes.

        Args:
            rank: Rank of x.
            pads: Elements added before each of `axes`, then after each; negative to crop.
            axes: Padded axes; None for all.

        Raises:
            ShapeError: There are not two pads per axis.
        """
        places = list(range(rank)) if axes is None else axes
        if len(pads) != 2 * len(places):
            raise ShapeError(
                f"Pad: {counted(len(pads), 'pad')} for {counted(len(places), 'axis', 'axes')}; "
                "expected two each."
            )
        begins, ends = [0] * rank, [0] * rank
        for k, axis in enumerate(places):
            at = normalize_axis(axis, rank, self)
            # Pads may be symbolic here; only `infer` passes such pads.
            begins[at], ends[at] = pads[k], pads[len(places) + k]  # type: ignore[assignment]
        return begins, ends

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        check_scalar(inputs, 2, self, "the value")
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        pads, axes = elements(inputs, 1), elements(inputs, 3)
        rank, numbers = len(x.shape), None if axes is None else [int(a) for a in axes]
        if pads is None or (has_input(inputs, 3) and numbers is None):
            padded = range(rank) if numbers is None else [a % rank for a in numbers]
            dims = zip(x.shape, fresh_dims(rank), strict=True)
            shape = tuple(new if a in padded else old for a, (old, new) in enumerate(dims))
            return [TensorType(x.dtype, shape)]
        begins, ends = self.full_pads(rank, pads, numbers)
        padded_dims = (d + b + e for d, b, e in zip(x.shape, begins, ends, strict=True))
        shape = checked_sizes(
            padded_dims, lambda: f"Pad: {x} is cropped by more than its size by pads {pads}."
        )
        for axis, dim in enumerate(shape):
            source = x.shape[axis]
            if self.mode != "constant" and isinstance(source, int) and isinstance(dim, int):
                cropped = source + min(begins[axis], 0) + min(ends[axis], 0)
                if cropped <= 0 < dim:
                    raise ShapeError(f"Pad: axis {axis} has no elements for mode {self.mode}.")
        return [TensorType(x.dtype, shape)]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        x = node.arg(0)
        shape, pads, axes = known_shape(x), elements(node.input_types, 1), node.input(3)
        if pads is None or (axes is not None and axes.type.data is None):
            raise UnsupportedError("its pads depend on run-time data, which gradients need")
        if self.mode == "constant":
            by_x = b(Pad(), cotangent, b.dims([-p for p in pads]), None, axes)
            value = node.input(2)
            if value is None:
                return [by_x]
            total, kept = (b("ReduceSum", v, keepdims=0) for v in (cotangent, by_x))
            return [by_x, None, b.reshaped(b("Sub", total, kept), *known_shape(value))]
        numbers = elements(node.input_types, 3)
        padded = None if numbers is None else [int(a) for a in numbers]
        begins, ends = self.full_pads(len(shape), pads, padded)
        for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            if provably_equal(begin, 0) and provably_equal(end, 0):
                continue
            # The same Pad of the indices gives the source of each element.
            taken = b(self, b.count_up(shape[axis]), b.dims([begin, end]))
            whole = list(known_shape(cotangent))
            whole[axis] = shape[axis]
            cotangent = scattered(b, cotangent, taken, axis, whole)
        return [cotangent]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, pads, value, axes = (*inputs, None, None)[:4]
        assert x is not None and pads is not None
        numbers = None if axes is None else [int(a) for a in axes]
        begins, ends = self.full_pads(x.ndim, [int(p) for p in pads], numbers)
        crop = tuple(
            slice(max(-b, 0), d - max(-e, 0)) for b, e, d in zip(begins, ends, x.shape, strict=True)
        )
        widths = [(max(b, 0), max(e, 0)) for b, e in zip(begins, ends, strict=True)]
        x = x[crop]
        if self.mode == "constant":
            fill = (np.zeros(1, x.dtype) if value is None else value.reshape(-1))[0]
            return (np.pad(x, widths, constant_values=fill),)
        if 0 in x.shape:
            return (
                np.zeros([d + b + e for d, (b, e) in zip(x.shape, widths, strict=True)], x.dtype),
            )
        return (np.pad(x, widths, mode=self.mode),)
