"""Puts the graph that a node stands for in its place."""

from __future__ import annotations

from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.decompositions.registry import Audience, decompose, of_class
from clrt.passes.driver import GraphView, Match, Miss, Pass


class InlineGraphs(Pass):
    """If with a constant condition -> its branch; Scan of one slice -> its graph; Einsum ->
    transpositions, sums, products.
    """

    name = "inline_graphs"

    def wants(self, op: type[IrOp]) -> bool:
        return of_class(op, Audience.PLANNING) is not None

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        found = decompose(node, view.names, Audience.PLANNING)
        return None if found is None else Match(view, node, facts=found)

    def rewrite(self, match: Match) -> Patch:
        nodes, results = match.facts
        return Patch(dict(zip(match.root.outputs, results, strict=False)), nodes)
