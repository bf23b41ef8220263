"""Sinks Expand below elementwise ops, so that they compute before broadcasting."""

from __future__ import annotations

from clrt.errors import ShapeError
from clrt.ir.dims import Shape, same_shape
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.checks import broadcast_shapes
from clrt.ops.movement.expand import Expand
from clrt.ops.pointwise.base import Pointwise
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import has_one_element, produced_by


class SinkExpand(Pass):
    """f(Expand(x), y) -> f(x, y) if y has the output shape; f(Expand(x), c) -> Expand(f(x, c)).

    f is elementwise, and c has one element. The expanded x is then not stored, and in the second
    case f computes fewer elements.
    """

    name = "sink_expand"
    required_op_classes = (Expand,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Pointwise)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if len(node.outputs) != 1:
            return None
        expands = [produced_by(v, "Expand") for v in node.inputs]
        if not any(expands):
            return None
        for index, expand in enumerate(expands):
            if expand is None:
                continue
            inputs = list(node.inputs)
            inputs[index] = expand.arg(0)
            if same_shape(_broadcast(node, inputs), node.output.shape):
                return Match(view, node, traversed_nodes=[expand], payload=(inputs, None))
            others = [v for k, v in enumerate(node.inputs) if k != index and v is not None]
            if all(has_one_element(v) for v in others):
                target = node.output.shape
                if target is not None and same_shape(expand.output.shape, target):
                    return Match(view, node, traversed_nodes=[expand], payload=(inputs, expand))
        return Miss("the other operands have neither the output shape nor one element", node)

    def rewrite(self, match: Match) -> Patch:
        inputs, expand = match.payload
        build = match.builder(self.name)
        value = build.add(match.root.op, *inputs)
        if expand is not None:
            value = build.add(expand.op, value, expand.arg(1))
        return build.patch({match.root.output: value})


def _broadcast(node: Node, inputs: list[Value | None]) -> Shape | None:
    """Returns the shape that `inputs` broadcast to; None if unknown or if they do not broadcast."""
    try:
        return broadcast_shapes([v.shape for v in inputs if v is not None], node.op_as(Pointwise))
    except ShapeError:
        return None
