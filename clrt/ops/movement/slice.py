"""Slice: selects a range with a stride along some axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.dim_operations import floordiv, maximum, minimum
from clrt.ir.dims import Dim, UndecidableDim, provably_equal
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.runtime_values import RuntimeValue, tensor
from clrt.kernels.size_formulas import count_taken, first_taken, slice_indices
from clrt.kernels.spec import BufferArg, Launch
from clrt.kernels.strided import collapse, contiguous_strides, copy_launches
from clrt.kernels.subview import Subview
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, HostContext, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.control.host_driven import take
from clrt.ops.gradients.shapes import known_shape, known_size, scattered
from clrt.ops.movement.common import (
    data_of,
    elements,
    fresh_dim,
    fresh_dims,
    has_input,
    host_ints,
    length,
    num_elements,
)
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, InputTraits, MemoryTraits, OnnxTraits
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

# Bounds from this value on mean "to the end": models write INT32_MAX or INT64_MAX.
_FAR = (1 << 31) - 1


def sliced_dim(dim: Dim, start: Dim, end: Dim, step: Dim) -> Dim | None:
    """Returns the number of indices that `start:end:step` selects of an axis of size `dim`.

    Returns None if symbols make it undecidable.
    """
    if not isinstance(step, int):
        return None
    if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int):
        return count_taken(dim, start, end, step)
    if step < 0:
        whole = (
            (provably_equal(start, -1) or _is_far(start)) and isinstance(end, int) and end <= -_FAR
        )
        return floordiv(dim + (-step - 1), -step) if whole else None
    try:
        to_end = _is_far(end) or bool(end >= dim)
    except UndecidableDim:
        to_end = False
    if to_end and isinstance(start, int) and -_FAR < start < 0:
        span = minimum(dim, -start)
    else:
        first = maximum(dim + start, 0) if _is_negative(start) else start
        if isinstance(start, int) and start <= -_FAR:
            first = 0
        if to_end:
            last: Dim | None = dim
        elif _is_negative(end):
            last = dim + end
        else:
            last = None if _is_negative(end) is None else minimum(end, dim)
        if last is None or _is_negative(start) is None:
            return None
        span = maximum(last - first, 0)
    return span if step == 1 else floordiv(span + (step - 1), step)


def _is_far(bound: Dim) -> bool:
    """Returns whether a bound of a slice is a number so large that it means the end of the axis."""
    return isinstance(bound, int) and bound >= _FAR


def _is_negative(bound: Dim) -> bool | None:
    """Returns whether the bound of a slice is negative; None if symbols make it undecidable."""
    try:
        return bool(bound < 0)
    except UndecidableDim:
        return None


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y = node.arg(0), node.output
    if not num_elements(y.dims) or 0 in ctx.aliased_subviews_of(node):
        return []
    offset, steps = node.op_as(Slice).taken_from(node)
    target = contiguous_strides(y.dims)
    return copy_launches(ctx, BufferArg(x, offset), BufferArg(y), x.dtype, y.dims, steps, target)


@register
@dataclass(frozen=True)
class Slice(Op):
    """Selects x[start:end:step] on some axes; `slice_indices` defines the selected indices.

    Inputs: x, starts, ends, axes (default: the first ones), steps (default: 1).

    Source: ONNX Slice, opset 1 to 13; bounds and axes became inputs in 10.
    """

    onnx_traits = OnnxTraits(
        attribute_to_input={
            "starts": (1, np.int64),
            "ends": (2, np.int64),
            "axes": (3, np.int64),
        }
    )
    memory_traits = MemoryTraits(is_data_movement=True, partially_read_input=0)
    input_traits = InputTraits(required=(1, 2), plan_time=(1, 2, 3, 4), host_driven=(1, 2, 3, 4))
    accuracy = Accuracy.EXACT
    supported_storages = None
    host_traits = HostTraits(evaluates_dims=True)
    variants = (Variant("strided", _emit),)

    def bounds(
        self,
        rank: int,
        starts: Sequence[int],
        ends: Sequence[int],
        axes: Sequence[int] | None = None,
        steps: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yields (axis, start, end, step) for each sliced axis, with a non-negative axis.

        Args:
            rank: Rank of x.
            starts: Start per sliced axis.
            ends: End per sliced axis.
            axes: Sliced axes; None for the first ones.
            steps: Step per sliced axis; None for 1.
        """
        axes = range(len(starts)) if axes is None else axes
        steps = [1] * len(starts) if steps is None else steps
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            yield normalize_axis(axis, rank, self), start, end, step

    def taken_from(self, node: Node) -> tuple[int, list[int]]:
        """Returns the output of a Slice node as a strided view of x.

        Returns:
            The offset of its first element, and its stride along each axis, both in elements of x.
        """
        x = node.arg(0)
        bounds = [host_ints(node, i) for i in range(1, 5)]
        assert bounds[0] is not None and bounds[1] is not None
        strides = contiguous_strides(x.dims)
        offset, steps = 0, list(strides)
        for axis, start, end, step in self.bounds(len(x.dims), bounds[0], bounds[1], *bounds[2:]):
            offset += first_taken(x.dims[axis], start, end, step) * strides[axis]
            steps[axis] = step * strides[axis]
        return offset, steps

    def subviews(self, node: Node) -> list[Subview]:
        x, y = node.arg(0), node.output
        if not num_elements(y.dims):
            return []
        offset, steps = self.taken_from(node)
        dims, (source,) = collapse(y.dims, steps)
        if not dims:
            return [Subview(y, x, offset, 1, 1)]
        if source[-1] != 1 or len(dims) > 2:
            return []
        return [Subview(y, x, offset, dims[-1], source[0] if len(dims) > 1 else dims[-1])]

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        starts, ends = elements(inputs, 1), elements(inputs, 2)
        axes, steps = elements(inputs, 3), elements(inputs, 4)
        if has_input(inputs, 3) and axes is None:
            return [TensorType(x.dtype, fresh_dims(len(x.shape)))]
        lengths = {n for i in range(1, 5) if (n := self._length(inputs, i)) is not None}
        if len(lengths) > 1:
            raise ShapeError(f"Slice: starts, ends, axes and steps differ in length: {lengths}.")
        if axes is None:
            axes = list(range(lengths.pop() if lengths else len(x.shape)))
        result = list(x.shape)
        for k, axis in enumerate(axes):
            at = normalize_axis(int(axis), len(x.shape), self)
            step = 1 if not has_input(inputs, 4) else None if steps is None else steps[k]
            if provably_equal(step, 0) if step is not None else False:
                raise ShapeError(f"Slice: the step of axis {at} is 0.")
            dim = None
            if starts is not None and ends is not None and step is not None:
                dim = sliced_dim(x.shape[at], starts[k], ends[k], step)
            result[at] = fresh_dim() if dim is None else dim
        return [TensorType(x.dtype, tuple(result))]

    @staticmethod
    def _start(node: Node, k: int, size: Dim) -> Dim | None:
        """Returns the first index of the k-th sliced axis; None if unknown, or the step is not 1.

        Args:
            node: Slice node.
            k: Position in starts, ends, axes and steps.
            size: Size of the sliced axis.
        """
        starts, steps = (elements(node.input_types, i) for i in (1, 4))
        if starts is None or (node.input(4) is not None and (steps is None or steps[k] != 1)):
            return None
        start = starts[k]
        if not isinstance(start, int):
            return None
        return minimum(start, size) if start >= 0 else maximum(size + start, 0)

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        x = tensor(inputs[0])
        starts, ends = (host.read(b).tolist() for b in inputs[1:3])
        others = (None if b is None else host.read(b).tolist() for b in inputs[3:])
        for axis, start, end, step in self.bounds(len(x.shape), starts, ends, *others):
            indices = slice_indices(x.shape[axis], start, end, step)
            if indices != range(x.shape[axis]):
                x = take(x, axis, indices, host)
        return [x]

    @staticmethod
    def _length(inputs: Types, index: int) -> int | None:
        """Returns the number of elements of 1-D input `index`; None if it is omitted or unknown."""
        data = data_of(inputs, index)
        return length(inputs, index) if data is None else data.size

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        shape = known_shape(node.arg(0))
        axes = elements(node.input_types, 3)
        if node.input(3) is not None and axes is None:
            raise UnsupportedError("its axes depend on run-time data, which gradients need")
        if axes is None:
            axes = list(range(known_size(node.arg(1))))
        for k, axis in reversed(list(enumerate(axes))):
            at = normalize_axis(int(axis), len(shape), self)
            begin = self._start(node, k, shape[at])
            if begin is not None:
                end = shape[at] - begin - known_shape(node.output)[at]
                cotangent = b("Pad", cotangent, b.dims((begin, end)), None, b.ints(at))
                continue
            # The same Slice of the indices gives the source of each element.
            bounds = [
                v and b("Slice", v, b.ints(k), b.ints(k + 1))
                for v in (*node.inputs[1:], None, None)
            ]
            taken = b(self, b.count_up(shape[at]), bounds[0], bounds[1], b.ints(0), bounds[3])
            whole = list(known_shape(cotangent))
            whole[at] = shape[at]
            cotangent = scattered(b, cotangent, taken, at, whole)
        return [cotangent]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, starts, ends, axes, steps = (*inputs, None, None)[:5]
        assert x is not None and starts is not None and ends is not None
        index = [slice(None)] * x.ndim
        places = range(len(starts)) if axes is None else axes
        for k, axis in enumerate(places):
            step = 1 if steps is None else int(steps[k])
            at = normalize_axis(int(axis), x.ndim, self)
            indices = slice_indices(x.shape[at], int(starts[k]), int(ends[k]), step)
            stop = indices.stop if indices.stop >= 0 else None
            index[at] = slice(indices.start, stop, step) if indices else slice(0, 0)
        return (x[tuple(index)].copy(),)
