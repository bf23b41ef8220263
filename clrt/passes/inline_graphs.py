"""Puts the graph that a node stands for in its place."""

from __future__ import annotations

from clrt.ir.graph import Node, Patch
from clrt.ops.base import stand_in
from clrt.passes.driver import GraphView, Match, Miss, Pass


class InlineGraphs(Pass):
    """If with a constant condition -> its branch; Scan of one slice -> its graph; Einsum ->
    transpositions, sums, products.
    """

    name = "inline_graphs"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        body = stand_in(node, view.names)
        return None if body is None else Match(view, node, facts=body)

    def rewrite(self, match: Match) -> Patch:
        body = match.facts
        return Patch(dict(zip(match.root.outputs, body.outputs, strict=True)), body.nodes)
