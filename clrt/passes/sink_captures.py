"""Captured constants of If, Loop and Scan -> constants of their inner graphs."""

from __future__ import annotations

from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.control.control_flow import If, Loop, Scan, sink_constants
from clrt.passes.driver import GraphView, Match, Miss, Pass


class SinkCaptures(Pass):
    """Captured value of If, Loop or Scan that is constant -> constant of the inner graph.

    Many captured values become constant only when the outer graph is folded. A captured weight of a
    matrix product in a Loop would be packed in each iteration; a constant weight is packed once.
    """

    name = "sink_constants"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (If, Loop, Scan))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        op_and_inputs = sink_constants(node)
        return None if op_and_inputs is None else Match(view, node, payload=op_and_inputs)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        op, inputs = match.payload
        build.add(op, *inputs)
        return build.patch(dict(zip(node.outputs, build.nodes[0].outputs, strict=True)))
