"""Passes that find their nodes by a pattern."""

from __future__ import annotations

from typing import ClassVar

from clrt.ir.graph import Node
from clrt.ir.op import IrOp
from clrt.ir.pattern import Captures, Pattern
from clrt.passes.driver import GraphView, Match, Miss, Pass


class PatternPass(Pass):
    """A pass that matches nodes by a pattern; `rewrite` gets the `Captures` as the payload.

    Class attributes:
        pattern: Pattern of the output of the root node, at which the pass matches.
        replaces_root_only: Whether matched nodes except the root may be used elsewhere, too.
    """

    pattern: ClassVar[Pattern]
    replaces_root_only: ClassVar[bool] = False

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, self.pattern.roots)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        found = self.pattern.find(node.output, view)
        if isinstance(found, Captures):
            return Match(
                view, node, [node] if self.replaces_root_only else found.nodes, payload=found
            )
        return None if found is None else Miss(found, node)
