"""Removes nodes whose output equals one of their inputs."""

from __future__ import annotations

from collections.abc import Callable

from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.movement.expand import Expand
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.cast import Cast
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import (
    class_name,
    has_known_shape,
    keeps_shape,
    moves_ones,
    op_name,
    scalar,
    uniform,
)


class RemoveIdentity(Pass):
    """Node whose output equals one of its inputs -> that input.

    Identity, Dropout outside of training, Cast to the same dtype, views and Expand to the same
    shape, Transpose that moves no elements; Concat, Sum, Mean, Max or Min of one operand; Slice of
    everything, Pad by 0, Where of constant condition, x + 0, x - 0, x * 1, x / 1, x ** 1, true & x,
    false | x. If the constant broadcasts x to a larger shape, an Expand of x remains.
    """

    name = "remove_identity"

    def may_match(self, op: type[IrOp]) -> bool:
        return class_name(op) in _RULES

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        source = _RULES[op_name(node)](node)
        if source is None or any(map(view.is_used, node.outputs[1:])):
            return None
        if source.dtype is not node.output.dtype:
            return None
        if keeps_shape(source, node.output):
            return Match(view, node, payload=source)
        if op_name(node) in ("Identity", "Dropout"):
            return Miss(f"input {source.type} and output {node.output.type} differ", node)
        broadcasts = isinstance(node.op, Pointwise) and has_known_shape(node.output)
        return (
            Match(view, node, payload=source) if broadcasts and source.shape is not None else None
        )

    def rewrite(self, match: Match) -> Patch:
        source, node, build = match.payload, match.root, match.builder(self.name)
        if keeps_shape(source, node.output):
            return build.patch({node.output: source})
        assert node.output.shape is not None
        value = build.add(Expand(), source, build.dims(node.output.shape))
        return build.patch({node.output: value})


def _first(node: Node) -> Value | None:
    return node.arg(0)


def _dropout(node: Node) -> Value | None:
    training = node.input(2)
    return node.arg(0) if training is None or scalar(training) == 0 else None


def _cast(node: Node) -> Value | None:
    return node.arg(0) if node.op_as(Cast).to is node.arg(0).dtype else None


def _transpose(node: Node) -> Value | None:
    return node.arg(0) if moves_ones(node) else None


def _single(node: Node) -> Value | None:
    return node.arg(0) if len(node.inputs) == 1 else None


def _slice(node: Node) -> Value | None:
    """Returns the input of a Slice if all steps are known and positive, else None.

    If the output of such a Slice also has the shape of the input, which the caller checks, the two
    are equal.
    """
    steps = node.input(4)
    if steps is None:
        return node.arg(0)
    numbers = steps.numbers if steps.is_constant else None
    return node.arg(0) if numbers is not None and bool((numbers > 0).all()) else None


def _pad(node: Node) -> Value | None:
    pads_input = node.input(1)  # None if the file omits it
    pads = pads_input.numbers if pads_input is not None and pads_input.is_constant else None
    return node.arg(0) if pads is not None and not pads.any() else None


def _where(node: Node) -> Value | None:
    condition = uniform(node.arg(0))
    return None if condition is None else node.arg(1 if condition else 2)


def _neutral(number: float, *, both: bool) -> Callable[[Node], Value | None]:
    """Returns a rule that maps a binary node with a neutral operand to its other operand.

    Args:
        number: Neutral number of the op. An operand is neutral if all its elements equal it.
        both: Whether either operand may be neutral; if False, only the second one.
    """

    def rule(node: Node) -> Value | None:
        if len(node.inputs) != 2:
            return None
        if uniform(node.arg(1)) == number:
            return node.arg(0)
        return node.arg(1) if both and uniform(node.arg(0)) == number else None

    return rule


_RULES: dict[str, Callable[[Node], Value | None]] = {
    "Identity": _first,
    "Dropout": _dropout,
    "Cast": _cast,
    "Reshape": _first,
    "Flatten": _first,
    "Squeeze": _first,
    "Unsqueeze": _first,
    "Expand": _first,
    "Transpose": _transpose,
    "Concat": _single,
    "Sum": _single,
    "Mean": _single,
    "Max": _single,
    "Min": _single,
    "Slice": _slice,
    "Pad": _pad,
    "Where": _where,
    "Add": _neutral(0, both=True),
    "Sub": _neutral(0, both=False),
    "Mul": _neutral(1, both=True),
    "Div": _neutral(1, both=False),
    "Pow": _neutral(1, both=False),
    "And": _neutral(1, both=True),
    "Or": _neutral(0, both=True),
}
