"""Moves constants into the graphs that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from clrt.ir.graph import Graph, Node, Patch, Value
from clrt.ops.control_flow import If, Loop, Scan
from clrt.passes.driver import GraphView, Match, Miss, Pass, Rewriter


class SinkConstants(Pass):
    """What If, Loop or Scan captures and is constant becomes a constant of their graphs.

    Much is so only once the graph around them is folded. A product in a Loop would pack weights
    that are an input at each turn.
    """

    name = "sink_constants"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if not isinstance(node.op, (If, Loop, Scan)) or not any(map(_sinks, _captured(node))):
            return None
        return Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        rewriter, node = Rewriter(match, self.name), match.root
        op, captured = node.op, _captured(node)
        assert isinstance(op, (If, Loop, Scan))
        graphs: dict[str, Any] = {
            f.name: _with_constants(getattr(op, f.name), captured)
            for f in fields(op)
            if isinstance(getattr(op, f.name), Graph)
        }
        kept = [v for v in captured if not _sinks(v)]
        own = node.inputs[: len(node.inputs) - len(captured)]
        rewriter.add(replace(op, captures=len(kept), **graphs), *own, *kept)
        return rewriter.patch(dict(zip(node.outputs, rewriter.nodes[0].outputs, strict=True)))


def _captured(node: Node) -> Sequence[Value | None]:
    assert isinstance(node.op, (If, Loop, Scan))
    return node.inputs[len(node.inputs) - node.op.captures :]


def _sinks(value: Value | None) -> bool:
    return value is not None and value.is_constant and value.has_numbers


def _with_constants(graph: Graph, captured: Sequence[Value | None]) -> Graph:
    """A copy whose last inputs, those for what is captured, are gone where that is constant."""
    copy = graph.copy()
    inputs = copy.inputs[len(copy.inputs) - len(captured) :]
    copy.replace_inputs({v: c for v, c in zip(inputs, captured, strict=True) if _sinks(c)})
    return copy
