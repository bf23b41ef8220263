"""Gathers whose indices count in order, as exporters create for masks -> views or constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from clrt.ir.dims import Dim, Expr, Shape, UndecidableDim, product, provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import Array, IrOp
from clrt.passes.canonicalize_views import reshape
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import class_name, int_attribute, op_name, produced_by
from clrt.util.fast_dataclass import dataclass

# Bound of the magnitude of positions that are considered; larger ones are outside of any tensor.
_MAX_INDEX = 1 << 40
# Maximum number of producers that are followed from an index tensor.
_MAX_DEPTH = 12
_KINDS = ("GreaterOrEqual", "Gather", "GatherND")
# Supported index dtypes: narrower integers may overflow.
_WIDE = (DType.INT64, DType.INT32)


@dataclass(frozen=True)
class Grid:
    """Evenly spaced integers: the element at index (i_0, i_1, …) is offset + sum of steps[k] * i_k.

    Attributes:
        shape: Shape of the tensor.
        steps: Coefficient per axis; 0 if the axis has size 1.
        offset: First element.
    """

    shape: Shape
    steps: tuple[Dim, ...]
    offset: Dim = 0


class SimplifyAffineGathers(Pass):
    """Gather of all elements in order -> Reshape; GreaterOrEqual that always holds -> constant.

    A Gather with indices 0, 1, 2, … of all rows returns x in another shape, and so does a GatherND
    with all index tuples in row-major order. Both of torch's exporters create such nodes for the
    masks of transformers models (vmap over index tensors).
    """

    name = "simplify_index_grids"

    def may_match(self, op: type[IrOp]) -> bool:
        return class_name(op) in _KINDS

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        kind = op_name(node)
        if kind == "GreaterOrEqual":
            return Match(view, node) if _is_always(node) else None
        reason = _gathers_all(node) if kind == "Gather" else _gathers_all_nd(node)
        if reason == "":
            return Match(view, node)
        return None if reason is None else Miss(reason, node)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        if op_name(node) == "GreaterOrEqual":
            from clrt.ops.movement.expand import Expand

            assert node.output.shape is not None
            true = build.constant(np.ones((), bool))
            value = build.add(Expand(), true, build.dims(node.output.shape))
        else:
            value = reshape(build, node.arg(0), node.output)
        return build.patch({node.output: value})


def grid(value: Value, depth: int = 0) -> Grid | None:
    """Returns an integer tensor as a `Grid`; None if it is not known to be evenly spaced.

    Args:
        value: int32 or int64 tensor, computed by Range, Expand, Add and the like.
        depth: Number of producers followed so far, at most `_MAX_DEPTH`.
    """
    shape, node = value.shape, value.producer
    if shape is None or value.dtype not in _WIDE or depth > _MAX_DEPTH:
        return None
    data = value.type.data
    if data is not None and data.size == 1:
        return Grid(shape, (0,) * len(shape), _dim(data.reshape(-1)[0]))
    known = _known(value)
    if known is not None:
        return _counted(known)
    if node is None:
        return None
    match op_name(node):
        case "Range":
            return _range(node)
        case "Cast" | "Identity":
            return grid(node.arg(0), depth + 1)
        case "Reshape" | "Unsqueeze" | "Squeeze":
            return _moved(grid(node.arg(0), depth + 1), shape)
        case "Expand":
            return _broadcast(grid(node.arg(0), depth + 1), shape)
        case "Add" | "Sub" | "Mul":
            return _combined(node, shape, depth)
    return None


def _known(value: Value) -> Array | None:
    """Returns the elements of a constant, numbers or symbolic dims; None for other values."""
    if not value.is_constant:
        return None
    return value.type.data if value.numbers is None else value.numbers


def _counted(known: Array) -> Grid | None:
    """Returns an array of numbers or dims as a `Grid`; None if empty or not evenly spaced."""
    if not known.size:
        return None
    if known.dtype.kind in "iu":
        if not -_MAX_INDEX < int(known.min()) <= int(known.max()) < _MAX_INDEX:
            return None
        known = known.astype(np.int64)
    first = (0,) * known.ndim
    offset, steps = _dim(known[first]), list[Dim]()
    expected: Any = np.array(offset, known.dtype)
    for axis, size in enumerate(known.shape):
        place: tuple[Any, ...] = (*first[:axis], slice(None), *first[axis + 1 :])
        line = known[place]
        steps.append(_dim(line[1]) - offset if size > 1 else 0)
        counts = np.arange(size).astype(known.dtype) * steps[-1]
        if not np.array_equal(line, counts + offset):
            return None  # before a full-size array is allocated
        expected = expected + counts.reshape(-1, *(1,) * (known.ndim - 1 - axis))
    return Grid(known.shape, tuple(steps), offset) if np.array_equal(known, expected) else None


def _dim(element: object) -> Dim:
    """Converts an array element, a number or an Expr, to a dim."""
    return element if isinstance(element, Expr) else int(element)  # type: ignore[call-overload]


def _range(node: Node) -> Grid | None:
    """Returns the output of a Range as a `Grid`; None if its start or step is unknown."""
    start, delta, shape = node.arg(0).type.data, node.arg(2).type.data, node.output.shape
    if start is None or delta is None or shape is None:
        return None
    return Grid(shape, (_dim(delta.reshape(-1)[0]),), _dim(start.reshape(-1)[0]))


def _moved(source: Grid | None, shape: Shape) -> Grid | None:
    """Reshapes a `Grid` to a shape that differs only in axes of size 1; None for other shapes."""
    if source is None:
        return None
    pairs = zip(source.shape, source.steps, strict=True)
    pending = [(d, s) for d, s in pairs if not provably_equal(d, 1)]
    steps: list[Dim] = []
    for dim in shape:
        if provably_equal(dim, 1):
            steps.append(0)
        elif pending and provably_equal(pending[0][0], dim):
            steps.append(pending.pop(0)[1])
        else:
            return None
    return None if pending else Grid(shape, tuple(steps), source.offset)


def _broadcast(source: Grid | None, shape: Shape) -> Grid | None:
    """Broadcasts a `Grid` to a shape; None if it does not broadcast, or is None."""
    if source is None or len(source.shape) > len(shape):
        return None
    lead = len(shape) - len(source.shape)
    steps: list[Dim] = [0] * lead
    for dim, size, step in zip(shape[lead:], source.shape, source.steps, strict=True):
        if not provably_equal(dim, size) and not provably_equal(size, 1):
            return None
        steps.append(0 if provably_equal(size, 1) else step)
    return Grid(shape, tuple(steps), source.offset)


def _combined(node: Node, shape: Shape, depth: int) -> Grid | None:
    """Returns the output of an Add, Sub or Mul as a `Grid`; None if it is not evenly spaced.

    A product is evenly spaced if one factor has equal elements.

    Args:
        node: Add, Sub or Mul.
        shape: Shape of its output.
        depth: Number of producers followed so far.
    """
    a = _broadcast(grid(node.arg(0), depth + 1), shape)
    b = _broadcast(grid(node.arg(1), depth + 1), shape)
    if a is None or b is None:
        return None
    if op_name(node) == "Mul":
        if any(not provably_equal(s, 0) for s in a.steps):
            a, b = b, a
        if any(not provably_equal(s, 0) for s in a.steps):
            return None
        return Grid(shape, tuple(a.offset * s for s in b.steps), a.offset * b.offset)
    sign = 1 if op_name(node) == "Add" else -1
    steps = tuple(s + sign * t for s, t in zip(a.steps, b.steps, strict=True))
    return Grid(shape, steps, a.offset + sign * b.offset)


def _is_always(node: Node) -> bool:
    """Whether a GreaterOrEqual is provably true for all elements.

    Both operands must be evenly spaced (`Grid`). The left operand must not decrease along any axis.
    All elements of the right operand must be equal, and at most the first one of the left operand.
    """
    left, right = grid(node.arg(0)), grid(node.arg(1))
    if left is None or right is None or any(not provably_equal(s, 0) for s in right.steps):
        return False
    try:
        return bool(all(s >= 0 for s in left.steps) and left.offset >= right.offset)
    except UndecidableDim:
        return False


def _gathers_all(node: Node) -> str | None:
    """Returns why a Gather does not read all rows of x in order; "" if it does.

    Returns None for nodes to which the question does not apply: the indices are not known to be
    evenly spaced (`Grid`), x has unknown rank, or the axis is not 0.
    """
    x, indices = node.arg(0), node.arg(1)
    positions = grid(indices)
    if positions is None or x.shape is None or int_attribute(node.op, "axis", 0) != 0:
        return None
    stride: Dim = 1
    for dim, step in zip(reversed(positions.shape), reversed(positions.steps), strict=True):
        if not provably_equal(dim, 1) and not provably_equal(step, stride):
            return f"its indices step by {step} where rows in order would step by {stride}"
        stride = stride * dim
    if not provably_equal(positions.offset, 0) or not provably_equal(
        product(positions.shape), x.shape[0]
    ):
        return "its indices count, but not over all rows"
    return ""


def _gathers_all_nd(node: Node) -> str | None:
    """Returns why a GatherND does not read all elements in order; "" if it does.

    Returns None if the components of its indices are not known to be evenly spaced (`Grid`), or if
    a rank is unknown.
    """
    x, y = node.arg(0), node.output
    columns = _columns(node.arg(1))
    if columns is None or x.shape is None or y.shape is None:
        return None
    if any(c is None or not provably_equal(c.shape[-1], 1) for c in columns):
        return None
    if len(columns) != len(x.shape) or int_attribute(node.op, "batch_dims", 0):
        return "it gathers slices or batches, not elements"
    free = [k for k, d in enumerate(y.shape) if not provably_equal(d, 1)]
    for column, dim in zip(columns, x.shape, strict=True):
        assert column is not None
        moving = [k for k, s in enumerate(column.steps) if not provably_equal(s, 0)]
        if not provably_equal(column.offset, 0):
            return "its indices do not start at 0"
        if provably_equal(dim, 1) and not moving:
            continue
        if len(moving) != 1 or not free or free[0] != moving[0]:
            return "its indices are not one axis of the result each, in order"
        axis = free.pop(0)
        if not provably_equal(column.steps[axis], 1) or not provably_equal(y.shape[axis], dim):
            return f"its indices along axis {axis} are not 0, 1, … up to {dim}"
    return "it repeats elements" if free else ""


def _columns(indices: Value) -> list[Grid | None] | None:
    """Returns each component of index tuples as a `Grid`, if it is evenly spaced.

    Args:
        indices: Indices of a GatherND, `[…, components]`: a tuple along the last axis.

    Returns:
        For a constant, a grid `[…, 1]` per component. For a Concat along the last axis, a grid per
        input; the caller must check that each input is one component. An entry is None if it is not
        known to be evenly spaced. None instead of the list for all other values.
    """
    known = _known(indices)
    if known is not None:
        return [_counted(known[..., k : k + 1]) for k in range(known.shape[-1])]
    concat = produced_by(indices, "Concat")
    rank = None if concat is None else concat.output.type.rank
    if concat is None or rank is None or int_attribute(concat.op, "axis", 0) % rank != rank - 1:
        return None
    return [None if v is None else grid(v) for v in concat.inputs]
