"""Concat of all outputs of a Split -> Concat of the Split's input."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.checks import normalize_axis
from clrt.ops.movement.concat import Concat, Split
from clrt.passes.driver import GraphView, Match, Miss, Pass


class ElideSplitConcat(Pass):
    """Concat(…, all outputs of Split(x), …) along the same axis -> Concat(…, x, …).

    In networks that process one half of x and concatenate the result with both halves (YOLO's C2f),
    planning can then place x in the memory of the Concat's output, without a copy.
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
    """Returns a Concat's inputs, with each run of all outputs of a Split replaced by its input."""
    inputs: list[Value | None] = []
    index = 0
    while index < len(node.inputs):
        value = node.inputs[index]
        split = None if value is None else value.producer
        if (
            split is not None
            and _is_along(split, node)
            and _reads_in_order(node, index, split.outputs)
        ):
            inputs.append(split.input(0))
            index += len(split.outputs)
        else:
            inputs.append(value)
            index += 1
    return inputs


def _reads_in_order(node: Node, first: int, values: Sequence[Value]) -> bool:
    """Whether inputs `first`, `first + 1`, … of a node are `values`, in order."""
    remaining = len(node.inputs) - first
    return len(values) <= remaining and all(
        node.inputs[first + i] is v for i, v in enumerate(values)
    )


def _is_along(split: Node, concat: Node) -> bool:
    """Whether `split` is a Split along the same axis as the Concat `concat`."""
    shape = split.arg(0).shape if isinstance(split.op, Split) else None
    if shape is None or not isinstance(split.op, Split) or not isinstance(concat.op, Concat):
        return False
    axes = (normalize_axis(op.axis, len(shape), op) for op in (split.op, concat.op))
    return len(set(axes)) == 1
