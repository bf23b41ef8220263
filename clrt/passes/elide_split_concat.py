"""Takes a value for its parts, where these stand side by side again."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.checks import normalize_axis
from clrt.ops.movement.concat import Concat, Split
from clrt.passes.driver import GraphView, Match, Miss, Pass


class JoinSplit(Pass):
    """Concat(…, all outputs of Split(x), …) along the same axis -> Concat(…, x, …).

    So blocks that compute on with one half of x and put it beside both (YOLO's C2f) need no copy:
    planning has x computed in the memory of the result.
    """

    name = "join_split"
    required_op_classes = (Split,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Concat)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        joined = _joined(node)
        return Match(view, node, payload=joined) if len(joined) < len(node.inputs) else None

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        return build.patch({node.output: build.add(node.op, *match.payload)})


def _joined(node: Node) -> list[Value | None]:
    """The inputs of a Concat, with what was split in place of its parts."""
    found: list[Value | None] = []
    at = 0
    while at < len(node.inputs):
        value = node.inputs[at]
        split = None if value is None else value.producer
        if split is not None and _is_along(split, node) and _stand_at(node, at, split.outputs):
            found.append(split.input(0))
            at += len(split.outputs)
        else:
            found.append(value)
            at += 1
    return found


def _stand_at(node: Node, at: int, values: Sequence[Value]) -> bool:
    """Whether a node reads values one behind the other, from an input on."""
    left = len(node.inputs) - at
    return len(values) <= left and all(node.inputs[at + i] is v for i, v in enumerate(values))


def _is_along(split: Node, concat: Node) -> bool:
    """Whether a node is a Split along the axis of a Concat."""
    shape = split.arg(0).shape if isinstance(split.op, Split) else None
    if shape is None or not isinstance(split.op, Split) or not isinstance(concat.op, Concat):
        return False
    axes = (normalize_axis(op.axis, len(shape), op) for op in (split.op, concat.op))
    return len(set(axes)) == 1
