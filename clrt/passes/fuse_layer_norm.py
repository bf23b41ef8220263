"""Layer and RMS normalization in primitive ops -> LayerNormalization, RMSNormalization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clrt.ir.dims import provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.norm.rms_normalization import RMSNormalization
from clrt.ops.pointwise.table import Div, Mul
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import (
    int_attribute,
    keeps_shape,
    op_name,
    operand_orders,
    produced_by,
    scalar,
)


@dataclass
class _Norm:
    """Matched normalization of x over its last axis.

    Attributes:
        x: Input.
        centred: Whether the mean is subtracted: layer normalization, not RMS.
        epsilon: Number added to the variance, or to the mean square without `centred`.
        nodes: Nodes of the pattern, which the rewrite makes dead.
        scale: Factor per column, [D]; None for 1.
        bias: Shift per column, [D]; None for 0.
    """

    x: Value
    centred: bool
    epsilon: float
    nodes: list[Node]
    scale: Value | None = None
    bias: Value | None = None


class FuseLayerNorm(Pass):
    """(x - mean(x)) / sqrt(mean((x - mean(x))²) + ε) * scale + bias -> LayerNormalization.

    Without the subtraction of the mean: RMSNormalization. The square may be Pow or Mul; x may be
    divided by the root or multiplied by its reciprocal. Means are over the last axis.
    """

    name = "fuse_layer_norm"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Div, Mul))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        norm = _core(node)
        if not isinstance(norm, _Norm):
            return None if norm is None else Miss(norm, node)
        if norm.x.dtype is DType.FLOAT64:
            return Miss("the fused op computes in float32, this in float64", node)
        last = _affine(view, node, norm)
        width = None if norm.x.shape is None else norm.x.shape[-1]
        if norm.scale is None and not isinstance(width, int):
            return Miss("it has no scale, and the size of the last axis is unknown", node)
        if not keeps_shape(norm.x, node.output):
            return Miss("a constant of higher rank than x broadcasts it", node)
        return Match(view, last, replaced_nodes=norm.nodes, payload=norm)

    def rewrite(self, match: Match) -> Patch:
        norm, build = match.payload, match.builder(self.name)
        assert isinstance(norm, _Norm)
        scale = norm.scale
        if scale is None:
            assert norm.x.shape is not None
            width = norm.x.shape[-1]
            assert isinstance(width, int)
            scale = build.constant(np.ones(width, norm.x.dtype.numpy))
        cls = LayerNormalization if norm.centred else RMSNormalization
        value = build.add(cls(epsilon=norm.epsilon), norm.x, scale, norm.bias)
        return build.patch({match.root.output: value})


def _core(node: Node) -> _Norm | str | None:
    """Matches a normalization without scale and bias whose last node is `node`.

    Returns:
        The match; a reject reason for a near miss; None for other nodes.
    """
    for numerator, variance, nodes in _quotients(node):
        inside = produced_by(variance, "Add")
        if inside is None:
            continue
        for mean, constant in operand_orders(inside):
            epsilon, reduce = scalar(constant), produced_by(mean, "ReduceMean")
            if epsilon is None or reduce is None:
                continue
            if not _over_last_axis(reduce):
                return "the mean of squares is not over the last axis alone"
            square = _squared(reduce.arg(0))
            if square is None:
                continue
            base, square_node = square
            return _source(numerator, base, epsilon, [*nodes, inside, reduce, square_node])
    return None


def _quotients(node: Node) -> list[tuple[Value, Value, list[Node]]]:
    """Matches x / sqrt(v), or x times the reciprocal of sqrt(v).

    Returns:
        (x, v, nodes of the pattern) for every way to read `node` so; [] if there is none.
    """
    if op_name(node) == "Div":
        root = produced_by(node.arg(1), "Sqrt")
        return [(node.arg(0), root.arg(0), [node, root])] if root else []
    quotients: list[tuple[Value, Value, list[Node]]] = []
    for x, factor in operand_orders(node):
        inverse = produced_by(factor, "Reciprocal", "Div", "Pow")
        if inverse is None:
            continue
        if op_name(inverse) == "Pow":
            if scalar(inverse.arg(1)) == -0.5:
                quotients.append((x, inverse.arg(0), [node, inverse]))
            continue
        if op_name(inverse) == "Div" and scalar(inverse.arg(0)) != 1:
            continue
        root = produced_by(inverse.arg(len(inverse.inputs) - 1), "Sqrt")
        if root is not None:
            quotients.append((x, root.arg(0), [node, inverse, root]))
    return quotients


def _squared(value: Value) -> tuple[Value, Node] | None:
    """Returns x and the Pow or Mul node if a value is the square of x, else None."""
    node = value.producer
    if node is not None and op_name(node) == "Pow" and scalar(node.arg(1)) == 2:
        return node.arg(0), node
    if node is not None and op_name(node) == "Mul" and node.arg(0) is node.arg(1):
        return node.arg(0), node
    return None


def _source(numerator: Value, base: Value, epsilon: float, nodes: list[Node]) -> _Norm | str:
    """Builds the match of numerator / sqrt(mean(base²) + epsilon).

    Args:
        numerator: x - mean(x), or x.
        base: x - mean(x), or x.
        epsilon: Number added to the mean square.
        nodes: Nodes matched already, which the rewrite makes dead.

    Returns:
        The match; a reject reason if numerator and base differ.
    """
    first, second = _deviation(numerator), _deviation(base)
    if first is not None and second is not None:
        (x, first_nodes), (other, second_nodes) = first, second
        if x is not other:
            return "numerator and variance subtract means of different values"
        all_nodes = list(dict.fromkeys([*nodes, *first_nodes, *second_nodes]))
        return _Norm(x, True, epsilon, all_nodes)
    if numerator is base:
        return _Norm(base, False, epsilon, nodes)
    return "numerator and variance are of different values"


def _deviation(value: Value) -> tuple[Value, list[Node]] | None:
    """Matches x - mean(x) over the last axis; returns x and [Sub, ReduceMean], else None."""
    node = produced_by(value, "Sub")
    mean = None if node is None else produced_by(node.arg(1), "ReduceMean")
    if node is None or mean is None or mean.arg(0) is not node.arg(0):
        return None
    return (node.arg(0), [node, mean]) if _over_last_axis(mean) else None


def _over_last_axis(reduce: Node) -> bool:
    """Whether a reduction is over the last axis alone and keeps it as an axis of size 1."""
    axes, rank = reduce.input(1), reduce.arg(0).type.rank
    if not int_attribute(reduce.op, "keepdims", 1) or rank is None:
        return False
    numbers = axes.numbers if axes is not None and axes.is_constant else None
    return numbers is not None and numbers.size == 1 and int(numbers.flat[0]) in (-1, rank - 1)


def _affine(view: GraphView, node: Node, norm: _Norm) -> Node:
    """Extends a match by a Mul (scale) and an Add (bias) of one element per column after it.

    Args:
        view: Graph of the nodes.
        node: Last node of the normalization.
        norm: The match; scale, bias and nodes are set. RMS normalization has no bias.

    Returns:
        The last node of the extended pattern.
    """
    last = node
    for name in ("Mul", "Add"):
        user = view.only_user(last.output)
        if user is None or op_name(user) != name or (name == "Add" and not norm.centred):
            break
        operand = _per_column(user, last, norm.x)
        if operand is None:
            break
        if name == "Mul":
            norm.scale = operand
        else:
            norm.bias = operand
        norm.nodes.append(user)
        last = user
    return last


def _per_column(user: Node, node: Node, x: Value) -> Value | None:
    """Returns the operand of `user` that scales or shifts columns: a vector `[D]`.

    Args:
        user: Mul or Add that reads the output of `node`.
        node: Normalization node.
        x: Input of the normalization, `[…, D]`.

    Returns:
        The operand that is not the output of `node`; None if it is not of shape `[D]`.
    """
    for product, operand in operand_orders(user):
        if product is not node.output or operand is product or not keeps_shape(user.output, x):
            continue
        if operand.shape is not None and x.shape is not None and len(operand.shape) == 1:
            return operand if provably_equal(operand.shape[0], x.shape[-1]) else None
    return None
