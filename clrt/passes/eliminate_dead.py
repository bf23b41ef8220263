"""Dead code elimination."""

from __future__ import annotations

from clrt.ir.graph import Node, Patch
from clrt.passes.driver import GraphView, Match, Miss, Pass


class EliminateDead(Pass):
    """Removes nodes whose outputs are neither read by other nodes nor graph outputs."""

    name = "eliminate_dead"
    visits_outputs_first = True
    is_local = True

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        for value in node.outputs:
            if view.is_used(value):
                return None
        return Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        return Patch({})
