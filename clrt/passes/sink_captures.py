"""Moves constants into the graphs that read them."""

from __future__ import annotations

from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.control.control_flow import If, Loop, Scan, sink_constants
from clrt.passes.driver import GraphView, Match, Miss, Pass


class SinkConstants(Pass):
    """What If, Loop or Scan captures and is constant becomes a constant of their graphs.

    Much is so only once the graph around them is folded. A product in a Loop would pack weights
    that are an input at each turn.
    """

    name = "sink_constants"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (If, Loop, Scan))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        found = sink_constants(node)
        return None if found is None else Match(view, node, payload=found)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        op, inputs = match.payload
        build.add(op, *inputs)
        return build.patch(dict(zip(node.outputs, build.nodes[0].outputs, strict=True)))
