"""Layer and RMS normalisation written out in primitive ops -> one node."""

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
    """What was found: the kind, the input, the affine part and the nodes it takes."""

    x: Value
    centred: bool
    epsilon: float
    nodes: list[Node]
    scale: Value | None = None
    bias: Value | None = None


class FuseLayerNorm(Pass):
    """(x - mean(x)) / sqrt(mean((x - mean(x))²) + ε) * scale + bias -> LayerNormalization.

    Without the subtraction: RMSNormalization. The square is Pow or Mul; the root divides, or its
    reciprocal multiplies; means are over the last axis.
    """

    name = "fuse_layer_norm"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Div, Mul))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        found = _core(node)
        if not isinstance(found, _Norm):
            return None if found is None else Miss(found, node)
        if found.x.dtype is DType.FLOAT64:
            return Miss("the fused op computes in float32, this in float64", node)
        last = _affine(view, node, found)
        width = None if found.x.shape is None else found.x.shape[-1]
        if found.scale is None and not isinstance(width, int):
            return Miss("it has no scale, and the size of the last axis is unknown", node)
        if not keeps_shape(found.x, node.output):
            return Miss("a constant of higher rank than x broadcasts it", node)
        return Match(view, last, replaced_nodes=found.nodes, payload=found)

    def rewrite(self, match: Match) -> Patch:
        found, build = match.payload, match.builder(self.name)
        assert isinstance(found, _Norm)
        scale = found.scale
        if scale is None:
            assert found.x.shape is not None
            width = found.x.shape[-1]
            assert isinstance(width, int)
            scale = build.constant(np.ones(width, found.x.dtype.numpy))
        norm = LayerNormalization if found.centred else RMSNormalization
        value = build.add(norm(epsilon=found.epsilon), found.x, scale, found.bias)
        return build.patch({match.root.output: value})


def _core(node: Node) -> _Norm | str | None:
    """The normalisation that ends in `node`, a reason against it, or None."""
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
    """(numerator, what is under the root, nodes) of every reading of x / sqrt(v)."""
    if op_name(node) == "Div":
        root = produced_by(node.arg(1), "Sqrt")
        return [(node.arg(0), root.arg(0), [node, root])] if root else []
    found: list[tuple[Value, Value, list[Node]]] = []
    for x, factor in operand_orders(node):
        inverse = produced_by(factor, "Reciprocal", "Div", "Pow")
        if inverse is None:
            continue
        if op_name(inverse) == "Pow":
            if scalar(inverse.arg(1)) == -0.5:
                found.append((x, inverse.arg(0), [node, inverse]))
            continue
        if op_name(inverse) == "Div" and scalar(inverse.arg(0)) != 1:
            continue
        root = produced_by(inverse.arg(len(inverse.inputs) - 1), "Sqrt")
        if root is not None:
            found.append((x, root.arg(0), [node, inverse, root]))
    return found


def _squared(value: Value) -> tuple[Value, Node] | None:
    node = value.producer
    if node is not None and op_name(node) == "Pow" and scalar(node.arg(1)) == 2:
        return node.arg(0), node
    if node is not None and op_name(node) == "Mul" and node.arg(0) is node.arg(1):
        return node.arg(0), node
    return None


def _source(numerator: Value, base: Value, epsilon: float, nodes: list[Node]) -> _Norm | str:
    """Tells x - mean(x) from x itself."""
    first, second = _deviation(numerator), _deviation(base)
    if first is not None and second is not None:
        (x, taken), (other, also) = first, second
        if x is not other:
            return "the deviations come from two values"
        unique = list(dict.fromkeys([*nodes, *taken, *also]))
        return _Norm(x, True, epsilon, unique)
    if numerator is base:
        return _Norm(base, False, epsilon, nodes)
    return "what is divided is not what was squared"


def _deviation(value: Value) -> tuple[Value, list[Node]] | None:
    """x and the nodes of x - mean(x)."""
    node = produced_by(value, "Sub")
    mean = None if node is None else produced_by(node.arg(1), "ReduceMean")
    if node is None or mean is None or mean.arg(0) is not node.arg(0):
        return None
    return (node.arg(0), [node, mean]) if _over_last_axis(mean) else None


def _over_last_axis(reduce: Node) -> bool:
    axes, rank = reduce.input(1), reduce.arg(0).type.rank
    if not int_attribute(reduce.op, "keepdims", 1) or rank is None:
        return False
    numbers = axes.numbers if axes is not None and axes.is_constant else None
    return numbers is not None and numbers.size == 1 and int(numbers.flat[0]) in (-1, rank - 1)


def _affine(view: GraphView, node: Node, found: _Norm) -> Node:
    """Takes up a scale and a bias that follow; returns the last node taken."""
    last = node
    for name in ("Mul", "Add"):
        user = view.only_user(last.output)
        if user is None or op_name(user) != name or (name == "Add" and not found.centred):
            break
        operand = _per_column(user, last, found.x)
        if operand is None:
            break
        if name == "Mul":
            found.scale = operand
        else:
            found.bias = operand
        found.nodes.append(user)
        last = user
    return last


def _per_column(user: Node, node: Node, x: Value) -> Value | None:
    """The other operand, if it has one element per column of x."""
    for product, operand in operand_orders(user):
        if product is not node.output or operand is product or not keeps_shape(user.output, x):
            continue
        if operand.shape is not None and x.shape is not None and len(operand.shape) == 1:
            return operand if provably_equal(operand.shape[0], x.shape[-1]) else None
    return None
