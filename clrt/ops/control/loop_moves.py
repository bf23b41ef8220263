"""Expresses data movement ops of a loop in one kernel (KernelLoop) as strided copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clrt.ir.graph import Node, Value
from clrt.kernels.strided import broadcast_strides, contiguous_strides
from clrt.ops.base import Op
from clrt.ops.checks import normalize_axis
from clrt.ops.movement.concat import Concat, Split
from clrt.ops.movement.expand import Expand
from clrt.ops.movement.slice import Slice
from clrt.ops.movement.transpose import Transpose
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class StridedView:
    """Elements of a tensor that a strided copy reads or writes.

    Attributes:
        value: Tensor.
        offset: Offset of the first element, in elements.
        steps: Stride along each axis of the copy, in elements.
    """

    value: Value
    offset: int
    steps: Sequence[int]


@dataclass(frozen=True)
class LoopCopy:
    """A copy of an array from one strided view to another.

    Attributes:
        dims: Shape of the copied array.
        source: View to read.
        target: View to write.
    """

    dims: Sequence[int]
    source: StridedView
    target: StridedView


def strided_copies(node: Node) -> list[LoopCopy] | None:
    """Returns the strided copies that compute a node; None for ops that do more than copy.

    Supported ops: Slice, Transpose, Expand, Concat and Split.

    Args:
        node: Node with static shapes.
    """
    build = _COPIES.get(type(node.op))  # type: ignore[arg-type]
    return None if build is None else build(node)


def _whole(value: Value) -> StridedView:
    """Returns the view of all elements of a tensor, in order."""
    return StridedView(value, 0, contiguous_strides(value.dims))


def _copies_of_slice(node: Node) -> list[LoopCopy]:
    offset, steps = node.op_as(Slice).taken_from(node)
    source = StridedView(node.arg(0), offset, steps)
    return [LoopCopy(node.output.dims, source, _whole(node.output))]


def _copies_of_transpose(node: Node) -> list[LoopCopy]:
    x = node.arg(0)
    op = node.op_as(Transpose)
    strides = contiguous_strides(x.dims)
    steps = [strides[axis] for axis in op.order(len(x.dims))]
    return [LoopCopy(node.output.dims, StridedView(x, 0, steps), _whole(node.output))]


def _copies_of_expand(node: Node) -> list[LoopCopy]:
    x, y = node.arg(0), node.output
    source = StridedView(x, 0, broadcast_strides(x.dims, y.dims))
    return [LoopCopy(y.dims, source, _whole(y))]


def _copies_of_concat(node: Node) -> list[LoopCopy]:
    parts = [v for v in node.inputs if v is not None]
    return [LoopCopy(v.dims, _whole(v), view) for v, view in _parts(node, node.output, parts)]


def _copies_of_split(node: Node) -> list[LoopCopy]:
    return [
        LoopCopy(v.dims, view, _whole(v)) for v, view in _parts(node, node.arg(0), node.outputs)
    ]


def _parts(node: Node, whole: Value, parts: Sequence[Value]) -> list[tuple[Value, StridedView]]:
    """Returns each of `parts` with its view of `whole`, of a Concat or Split node.

    Args:
        node: Concat or Split node.
        whole: Output of Concat, or input of Split.
        parts: Inputs of Concat, or outputs of Split; they are adjacent along the node's axis.
    """
    op = node.op_as(Concat, Split)
    axis = normalize_axis(op.axis, len(whole.dims), op)
    steps, offset, views = contiguous_strides(whole.dims), 0, []
    for value in parts:
        views.append((value, StridedView(whole, offset, steps)))
        offset += value.dims[axis] * steps[axis]
    return views


_COPIES: dict[type[Op], Callable[[Node], list[LoopCopy]]] = {
    Slice: _copies_of_slice,
    Transpose: _copies_of_transpose,
    Expand: _copies_of_expand,
    Concat: _copies_of_concat,
    Split: _copies_of_split,
}
