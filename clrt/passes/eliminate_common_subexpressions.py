"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable

from clrt.ir.graph import Node, Patch, Value
from clrt.passes.driver import GraphView, Match, Miss, Pass

# Maximum size in bytes of constants that are compared by their elements.
_MAX_COMPARED_BYTES = 1024


class EliminateCommonSubexpressions(Pass):
    """Node with the same op and inputs as an earlier node -> the earlier node's outputs.

    Two constants count as the same input if they are one value, or if both have equal elements and
    at most 1 KiB.
    """

    name = "eliminate_common_subexpressions"
    is_local = True

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if not node.outputs:
            return None
        key = (node.op, len(node.outputs), tuple([_key(v) for v in node.inputs]))
        try:
            first = view.memo.get(key)
        except TypeError:
            return None  # unhashable attribute
        if not isinstance(first, Node) or not view.is_alive(first):
            view.memo[key] = node
            return None
        if first is node:
            return None
        places = view.worklist.places
        if places[node] < places[first]:
            view.memo[key], node, first = node, first, node
        return Match(view, node, payload=first)

    def rewrite(self, match: Match) -> Patch:
        return Patch(dict(zip(match.root.outputs, match.payload.outputs, strict=True)))


def _key(value: Value | None) -> Hashable:
    """Returns a dictionary key of a node's input, equal for inputs that count as the same.

    The key of a constant is its dtype, shape and elements. The key of another value, or of numbers
    of more than 1 KiB, is the value itself.
    """
    if value is None or value.producer is not None or not value.is_constant:
        return value
    # Large constants are not compared: reading `data` may concatenate or convert their elements.
    if value.has_numbers and value.nbytes > _MAX_COMPARED_BYTES:
        return value
    data = value.type.data
    assert data is not None
    if data.dtype == object:
        return (value.dtype, data.shape, tuple(map(str, data.flat)))
    return (value.dtype, data.shape, data.tobytes())
