"""Sinks Reshape below products and elementwise ops, until it cancels with other views."""

from __future__ import annotations

from clrt.ir.dims import product, provably_equal
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.movement.views import Reshape
from clrt.ops.pointwise.base import Pointwise
from clrt.passes.canonicalize_views import reshape
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import has_one_element, keeps_shape, produced_by


class SinkReshape(Pass):
    """f(Reshape(x)) -> Reshape(f(x)), if f multiplies by a matrix or is elementwise with scalars.

    Exporters flatten [batch, tokens, columns] to [batch * tokens, columns] around every Gemm.
    """

    name = "sink_reshape"
    required_op_classes = (Reshape,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (FusedMatMul, Pointwise))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if isinstance(node.op, FusedMatMul):
            return _match_product(view, node)
        if len(node.outputs) != 1:
            return None
        views = [k for k, v in enumerate(node.inputs) if produced_by(v, "Reshape")]
        others = [v for k, v in enumerate(node.inputs) if k not in views[:1] and v is not None]
        inner = node.arg(views[0]).producer if views else None
        if inner is None or not keeps_shape(node.arg(views[0]), node.output):
            return None
        x = inner.arg(0)
        if not all(_is_number(v, x) for v in others):
            return None
        inputs = list(node.inputs)
        inputs[views[0]] = x
        return Match(view, node, traversed_nodes=[inner], payload=inputs)

    def rewrite(self, match: Match) -> Patch:
        build, (inner,), output = match.builder(self.name), match.traversed_nodes, match.root.output
        value = build.add(match.root.op, *match.payload)
        if isinstance(match.root.op, FusedMatMul):
            return build.patch({output: reshape(build, value, output)})
        # Keeps the input with the target shape: the dims may depend on it alone.
        return build.patch({output: build.add(inner.op, value, inner.arg(1))})


def _is_number(value: Value, beside: Value) -> bool:
    """Whether a value is a constant of one element and of at most the rank of `beside`."""
    if not has_one_element(value) or value.shape is None or beside.shape is None:
        return False
    return value.is_constant and len(value.shape) <= len(beside.shape)


def _match_product(view: GraphView, node: Node) -> Match | Miss | None:
    """Matches a FusedMatMul of matrices whose A is a Reshape that merges leading axes only.

    Returns:
        A match, whose payload is the inputs of the product with A before the Reshape; a near miss;
        None for other nodes.
    """
    inner = produced_by(node.arg(0), "Reshape")
    if inner is None or not isinstance(node.op, FusedMatMul):
        return None
    x, a, b = inner.arg(0), node.arg(0), node.arg(1)
    if x.shape is None or a.shape is None or b.shape is None:
        return None
    if len(a.shape) != 2 or len(x.shape) < 3 or len(b.shape) != 2:
        return None
    if node.op.trans_a or not provably_equal(x.shape[-1], a.shape[1]):
        return Miss("the Reshape before it changes the K axis", node)
    if not provably_equal(product(x.shape[:-1]), a.shape[0]):
        return None
    extras = [v for v in node.inputs[2:] if v is not None]
    if not all(_per_column(v) for v in extras):
        return Miss("an operand of its epilogue varies by row", node)
    return Match(view, node, traversed_nodes=[inner], payload=[x, b, *extras])


def _per_column(value: Value) -> bool:
    """Whether an epilogue operand is equal for all rows: a scalar, a vector or a one-row matrix."""
    shape = value.shape
    return shape is not None and (
        len(shape) < 2 or (len(shape) == 2 and provably_equal(shape[0], 1))
    )
