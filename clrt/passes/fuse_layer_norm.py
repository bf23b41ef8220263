"""Layer and RMS normalization in primitive ops -> LayerNormalization, RMSNormalization."""

from __future__ import annotations

import numpy as np

from clrt.ir.dims import provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ir.pattern import Captures, any_value, op
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.norm.rms_normalization import RMSNormalization
from clrt.ops.pointwise.table import Add, Div, Mul, Pow, Reciprocal, Sqrt, Sub
from clrt.ops.reduce.reduce import ReduceMean
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import (
    equals,
    int_attribute,
    keeps_shape,
    op_name,
    operand_orders,
    scalar,
)
from clrt.util.fast_dataclass import dataclass


def _over_last_axis(reduce: Node) -> bool:
    """Whether a reduction is over the last axis alone and keeps it as an axis of size 1."""
    axes, rank = reduce.input(1), reduce.arg(0).type.rank
    if not int_attribute(reduce.op, "keepdims", 1) or rank is None:
        return False
    numbers = axes.numbers if axes is not None and axes.is_constant else None
    return numbers is not None and numbers.size == 1 and int(numbers.flat[0]) in (-1, rank - 1)


# x - mean(x) over the last axis.
_DEVIATION = op(Sub, any_value("x"), op(ReduceMean, any_value("x"), ..., when=_over_last_axis))
_BASE = any_value("base")
_MEAN_SQUARE = op(
    ReduceMean,
    op(Pow, _BASE, equals(2)) | op(Mul, _BASE, _BASE),
    ...,
    when=lambda n: _over_last_axis(n) or "the mean of squares is not over the last axis alone",
)
_VARIANCE = op(Add, any_value("epsilon", lambda v: scalar(v) is not None), _MEAN_SQUARE)
_ROOT = op(Sqrt, _VARIANCE)
_INVERSE = op(Reciprocal, _ROOT) | op(Div, equals(1), _ROOT) | op(Pow, _VARIANCE, equals(-0.5))
# numerator / sqrt(mean(base * base) + epsilon)
_NUMERATOR = any_value("numerator")
_QUOTIENT = op(Div, _NUMERATOR, _ROOT) | op(Mul, _NUMERATOR, _INVERSE)


@dataclass
class _Norm:
    """Matched normalization of x over its last axis.

    Attributes:
        x: Input.
        centred: Whether the mean is subtracted: layer normalization, not RMS.
        epsilon: Number added to the variance, or to the mean square without `centred`.
        nodes: Nodes of the pattern, which the rewrite makes dead.
        scale: Factor per column, `[columns]`; None for 1.
        bias: Shift per column, `[columns]`; None for 0.
    """

    x: Value
    centred: bool
    epsilon: float
    nodes: list[Node]
    scale: Value | None = None
    bias: Value | None = None


class FuseLayerNorm(Pass):
    """(x - mean(x)) / sqrt(mean((x - mean(x))²) + ε) * scale + bias -> LayerNormalization.

    The same without the subtraction of the mean becomes RMSNormalization. The square may be Pow or
    Mul; x may be divided by the root or multiplied by its reciprocal. Means are over the last axis.
    """

    name = "fuse_layer_norm"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Div, Mul))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        norm = _core(view, node)
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


def _core(view: GraphView, node: Node) -> _Norm | str | None:
    """Matches a normalization without scale and bias whose last node is `node`.

    Returns:
        The match; a reject reason for a near miss; None for other nodes.
    """
    found = _QUOTIENT.find(node.output, view)
    if not isinstance(found, Captures):
        return found
    numerator, base = found["numerator"], found["base"]
    epsilon, nodes = scalar(found["epsilon"]), found.nodes[::-1]
    assert epsilon is not None
    first = _DEVIATION.find(numerator, view)
    second = first if base is numerator else _DEVIATION.find(base, view)
    if isinstance(first, Captures) and isinstance(second, Captures):
        if first["x"] is not second["x"]:
            return "numerator and variance subtract means of different values"
        all_nodes = dict.fromkeys([*nodes, *first.nodes[::-1], *second.nodes[::-1]])
        return _Norm(first["x"], True, epsilon, list(all_nodes))
    if numerator is base:
        return _Norm(base, False, epsilon, nodes)
    return "numerator and variance are of different values"


def _affine(view: GraphView, node: Node, norm: _Norm) -> Node:
    """Extends a match by a Mul (scale) and an Add (bias) of one element per column after it.

    Args:
        view: Graph of the nodes.
        node: Last node of the normalization.
        norm: The match, which is changed in place. RMS normalization gets no bias.

    Returns:
        The last node of the extended match; `node` if no scale or bias follows.
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
    """Returns the operand of `user` that scales or shifts columns.

    Args:
        user: Mul or Add that reads the output of `node`.
        node: Last node of the normalization.
        x: Input of the normalization, `[…, columns]`.

    Returns:
        The operand that is not the output of `node`; None if it is not a vector `[columns]`.
    """
    for product, operand in operand_orders(user):
        if product is not node.output or operand is product or not keeps_shape(user.output, x):
            continue
        if operand.shape is not None and x.shape is not None and len(operand.shape) == 1:
            return operand if provably_equal(operand.shape[0], x.shape[-1]) else None
    return None
