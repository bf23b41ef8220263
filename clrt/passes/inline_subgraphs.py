"""Puts the graph that a node stands for in its place."""

from __future__ import annotations

from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.decompositions.registry import DecompositionStage, decompose, of_class
from clrt.passes.driver import GraphView, Match, Miss, Pass


class InlineGraphs(Pass):
    """If with a constant condition -> its branch; Scan of one slice -> its graph; Einsum ->
    transpositions, sums, products.
    """

    name = "inline_graphs"

    def may_match(self, op: type[IrOp]) -> bool:
        return of_class(op, DecompositionStage.PLANNING) is not None

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        found = decompose(node, view.names, DecompositionStage.PLANNING)
        return None if found is None else Match(view, node, payload=found)

    def rewrite(self, match: Match) -> Patch:
        nodes, results = match.payload
        return Patch(dict(zip(match.root.outputs, results, strict=False)), nodes)
