"""Puts the graph that a node stands for in its place."""

from __future__ import annotations

from clrt.ir.graph import Node, Patch
from clrt.ops.base import Op
from clrt.passes.driver import GraphView, Match, Miss, Pass


class InlineBranches(Pass):
    """If with a constant condition -> the nodes of its branch."""

    name = "inline_branches"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        assert isinstance(node.op, Op)
        if not node.op.graphs:
            return None
        found = node.op.expand(node.inputs)
        return Match(view, node, facts=found) if found else None

    def rewrite(self, match: Match) -> Patch:
        graph, inputs = match.facts
        body = graph.over(inputs)
        return Patch(dict(zip(match.root.outputs, body.outputs, strict=True)), body.nodes)
