"""Simplification of ops that only change shape or axis order: Reshape, Squeeze, Transpose, …"""

from __future__ import annotations

from clrt.ir.dims import product, provably_equal
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Reshape
from clrt.ops.op_builder import OpBuilder
from clrt.ops.reduce.reduce import ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import (
    class_name,
    has_known_shape,
    keeps_shape,
    moves_ones,
    op_name,
    produced_by,
)

_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
# Reductions that return a single element unchanged.
_REDUCTIONS = (ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum)


class CanonicalizeViews(Pass):
    """Flatten, Squeeze, Unsqueeze, chains of Reshape -> one Reshape to the known (symbolic) shape.

    The target shape has no -1 and no 0 that means "as the input", so that empty batches stay
    correct. A Transpose that only moves axes of size 1 and a reduction over axes of size 1 also
    become a Reshape.

    Args:
        transposes: Whether a Transpose that only moves axes of size 1 becomes a Reshape. Must be
            false before FuseAttention, which matches Transposes, even of a single token.
    """

    name = "canonicalize_views"

    def __init__(self, transposes: bool = True) -> None:
        self._transposes = transposes

    def may_match(self, op: type[IrOp]) -> bool:
        views = (*_REDUCTIONS, Transpose) if self._transposes else _REDUCTIONS
        return class_name(op) in _VIEWS or issubclass(op, views)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        is_view = op_name(node) in _VIEWS or (self._transposes and moves_ones(node))
        if not is_view and not _reduces_ones(node):
            return None
        if node.output.shape is None:
            return Miss("the rank of the output is unknown", node)
        if not has_known_shape(node.output):
            return Miss("the shape of the output depends on computed data", node)
        source = node.arg(0)
        if op_name(source.producer) == "Reshape" and source.producer is not None:
            source = source.producer.arg(0)
        if source is node.arg(0) and _is_canonical(node):
            return None
        return Match(view, node, payload=source)

    def rewrite(self, match: Match) -> Patch:
        build = match.builder(self.name)
        value = reshape(build, match.payload, match.root.output)
        return build.patch({match.root.output: value})


class SimplifyTransposes(Pass):
    """Two Transposes -> one; Reshape, Transpose of rank 3, Reshape -> one Transpose.

    The second form is how torch's dynamo exporter swaps the last two axes of a batch of matrices:
    a Reshape to rank 3, a Transpose with perm (0, 2, 1), and a Reshape back to the rank before.
    """

    name = "simplify_transposes"
    required_op_classes = (Transpose,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Reshape, Transpose))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if isinstance(node.op, Transpose):
            inner = produced_by(node.arg(0), "Transpose")
            return None if inner is None else Match(view, node, traversed_nodes=[inner])
        transpose = produced_by(node.arg(0), "Transpose")
        first = None if transpose is None else produced_by(transpose.arg(0), "Reshape")
        if transpose is None or first is None:
            return None
        x, y = first.arg(0), node.output
        if x.shape is None or y.shape is None or len(x.shape) < 3 or len(x.shape) != len(y.shape):
            return None
        middle = transpose.arg(0).shape
        if middle is None or len(middle) != 3 or transpose.op_as(Transpose).order(3) != (0, 2, 1):
            return None
        swapped = (*x.shape[:-2], x.shape[-1], x.shape[-2])
        merged = (product(x.shape[:-2]), *x.shape[-2:])
        if not all(provably_equal(a, b) for a, b in zip(merged, middle, strict=True)):
            return None
        if not all(provably_equal(a, b) for a, b in zip(swapped, y.shape, strict=True)):
            return None
        return Match(view, node, traversed_nodes=[transpose, first])

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        if isinstance(node.op, Transpose):
            (inner,) = match.traversed_nodes
            x = inner.arg(0)
            rank = len(node.output.shape or ())
            first, second = inner.op_as(Transpose).order(rank), node.op.order(rank)
            perm = tuple(first[a] for a in second)
        else:
            x = match.traversed_nodes[1].arg(0)
            rank = len(x.shape or ())
            perm = (*range(rank - 2), rank - 1, rank - 2)
        return build.patch({node.output: build.add(Transpose(perm), x)})


def reshape(build: OpBuilder, source: Value, like: Value) -> Value:
    """Adds a Reshape of `source` to the known shape of `like`; returns the reshaped value.

    Returns `source` itself if the shapes are equal.
    """
    if keeps_shape(source, like):
        return source
    assert like.shape is not None
    value = build.reshaped(source, *like.shape)
    value.type = type(like.type)(source.dtype, like.shape, value.type.data)
    return value


def _reduces_ones(node: Node) -> bool:
    """Whether a node is a reduction over axes of size 1 only, which leaves elements unchanged."""
    shape, axes = node.arg(0).shape, node.input(1)
    if not isinstance(node.op, _REDUCTIONS) or shape is None:
        return False
    if axes is not None and not axes.has_numbers:
        return False
    return all(
        provably_equal(shape[axis], 1) for axis in node.op.axes_of(node.input_types, len(shape))
    )


def _is_canonical(node: Node) -> bool:
    """Whether a node is a Reshape with a constant target equal to its output shape (no -1 or 0)."""
    if not isinstance(node.op, Reshape) or not node.op.allowzero or node.output.shape is None:
        return False
    target = node.arg(1)
    if not target.is_constant or target.type.data is None:
        return False
    return all(
        provably_equal(a, b) for a, b in zip(target.type.data.flat, node.output.shape, strict=True)
    )
