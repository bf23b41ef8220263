"""Inlines nodes whose decomposition is known before planning: If, Scan, Einsum."""

from __future__ import annotations

from clrt.errors import ClrtError
from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.decompositions.registry import DecompositionStage, decompose, of_class
from clrt.passes.driver import GraphView, Match, Miss, Pass


class InlineSubgraphs(Pass):
    """Node -> its inline decomposition: If of constant condition, Scan of one slice, Einsum."""

    name = "inline_graphs"

    def may_match(self, op: type[IrOp]) -> bool:
        return of_class(op, DecompositionStage.PLANNING) is not None

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        decomposition = decompose(node, view.names, DecompositionStage.PLANNING)
        if decomposition is None:
            return None
        for inner in decomposition[0]:
            try:
                inner.op.infer(inner.input_types)
            except ClrtError as error:  # a run reports it
                return Miss(f"{inner} does not fit its inputs: {error}", node)
        return Match(view, node, payload=decomposition)

    def rewrite(self, match: Match) -> Patch:
        nodes, results = match.payload
        return Patch(dict(zip(match.root.outputs, results, strict=False)), nodes)
