"""Ops that move elements, as strided copies between tensors of a kernel loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clrt.ir.graph import Node, Value
from clrt.kernels.strided import broadcast_strides, contiguous_strides
from clrt.ops.base import Op
from clrt.ops.checks import normalize_axis
from clrt.ops.movement.concat import Concat, Split
from clrt.ops.movement.expand import Expand
from clrt.ops.movement.slice import Slice
from clrt.ops.movement.transpose import Transpose


@dataclass(frozen=True)
class StridedView:
    """Elements of a tensor: an offset, and a step along each axis of the copy."""

    value: Value
    offset: int
    steps: Sequence[int]


@dataclass(frozen=True)
class StridedCopy:
    """A copy of `dims` elements from one view to another."""

    dims: Sequence[int]
    source: StridedView
    target: StridedView


def strided_copies(node: Node) -> list[StridedCopy] | None:
    """Returns the copies that a node stands for; None for other ops.

    Args:
        node: All its shapes are numbers.
    """
    found = _COPIES.get(type(node.op))  # type: ignore[arg-type]
    return None if found is None else found(node)


def _whole(value: Value) -> StridedView:
    return StridedView(value, 0, contiguous_strides(value.dims))


def _copies_of_slice(node: Node) -> list[StridedCopy]:
    assert isinstance(node.op, Slice)
    offset, steps = node.op.taken_from(node)
    source = StridedView(node.arg(0), offset, steps)
    return [StridedCopy(node.output.dims, source, _whole(node.output))]


def _copies_of_transpose(node: Node) -> list[StridedCopy]:
    x = node.arg(0)
    assert isinstance(node.op, Transpose)
    strides = contiguous_strides(x.dims)
    steps = [strides[axis] for axis in node.op.order(len(x.dims))]
    return [StridedCopy(node.output.dims, StridedView(x, 0, steps), _whole(node.output))]


def _copies_of_expand(node: Node) -> list[StridedCopy]:
    x, y = node.arg(0), node.output
    source = StridedView(x, 0, broadcast_strides(x.dims, y.dims))
    return [StridedCopy(y.dims, source, _whole(y))]


def _copies_of_concat(node: Node) -> list[StridedCopy]:
    parts = [v for v in node.inputs if v is not None]
    return [StridedCopy(v.dims, _whole(v), place) for v, place in _parts(node, node.output, parts)]


def _copies_of_split(node: Node) -> list[StridedCopy]:
    return [
        StridedCopy(v.dims, place, _whole(v))
        for v, place in _parts(node, node.arg(0), node.outputs)
    ]


def _parts(node: Node, whole: Value, parts: Sequence[Value]) -> list[tuple[Value, StridedView]]:
    """The parts of a tensor side by side along the axis of a node, and where each lies."""
    assert isinstance(node.op, (Concat, Split))
    axis = normalize_axis(node.op.axis, len(whole.dims), node.op)
    steps, offset, found = contiguous_strides(whole.dims), 0, []
    for value in parts:
        found.append((value, StridedView(whole, offset, steps)))
        offset += value.dims[axis] * steps[axis]
    return found


_COPIES: dict[type[Op], Callable[[Node], list[StridedCopy]]] = {
    Slice: _copies_of_slice,
    Transpose: _copies_of_transpose,
    Expand: _copies_of_expand,
    Concat: _copies_of_concat,
    Split: _copies_of_split,
}
