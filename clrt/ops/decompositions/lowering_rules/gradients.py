"""Decompositions of ops into ones with gradient rules, for the gradient transform only."""

from __future__ import annotations

import math

from clrt.errors import UnsupportedError
from clrt.ir.dim_operations import floordiv
from clrt.ir.dims import Dim, product, provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ops.attention.attention import Attention
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.gradients.expression import Expression
from clrt.ops.gradients.shapes import known_shape
from clrt.ops.norm.batch_normalization import BatchNormalization
from clrt.ops.norm.group_normalization import GroupStatistics
from clrt.ops.norm.lp_normalization import LpNormalization
from clrt.ops.op_builder import OpBuilder


@register_decomposition(BatchNormalization, audience=DecompositionStage.GRADIENT)
def _batch_normalization(node: Node, b: OpBuilder) -> list[Value]:
    x = Expression(b, node.arg(0))
    rest = (1,) * (len(known_shape(x.value)) - 2)
    channels = (b.reshaped(v, *known_shape(v), *rest) for v in node.inputs[1:] if v is not None)
    scale, bias, mean, variance = (Expression(b, v) for v in channels)
    deviation = (variance + node.op_as(BatchNormalization).epsilon).apply("Sqrt")
    return [((x - mean) / deviation * scale + bias).value]


@register_decomposition(GroupStatistics, audience=DecompositionStage.GRADIENT)
def _group_normalization(node: Node, b: OpBuilder) -> list[Value]:
    op, x = node.op_as(GroupStatistics), node.arg(0)
    batch, channels, *spatial = known_shape(x)
    groups = channels if op.num_groups is None else op.num_groups

    def mean(values: Expression) -> Expression:
        return Expression(b, b("ReduceMean", values.value, b.ints(2), keepdims=1))

    def rows(value: Value, count: Dim) -> Value:
        return b.reshaped(value, batch, count, floordiv(channels, count) * product(spatial))

    wide = Expression(b, rows(x, groups)).widened()
    centred = wide - mean(wide)
    normal = centred / (mean(centred * centred) + op.epsilon).apply("Sqrt")
    parts = Expression(b, rows(normal.value, groups if op.per_group else channels))
    scale, bias = (Expression(b, b("Unsqueeze", node.arg(i), b.ints(1))).widened() for i in (1, 2))
    y = b.cast((parts * scale + bias).value, x.dtype)
    return [b.reshaped(y, batch, channels, *spatial)]


@register_decomposition(LpNormalization, audience=DecompositionStage.GRADIENT)
def _lp_normalization(node: Node, b: OpBuilder) -> list[Value]:
    op, x = node.op_as(LpNormalization), Expression(b, node.arg(0))
    norm = Expression(
        b, b("ReduceL1" if op.p == 1 else "ReduceL2", x.value, b.ints(op.axis), keepdims=1)
    )
    zero = norm.equals(0)
    return [(x / norm.constant(1).where(zero, norm)).where(~zero).value]


@register_decomposition(Attention, audience=DecompositionStage.GRADIENT)
def _attention(node: Node, b: OpBuilder) -> list[Value]:
    """Decomposes Attention into products and a softmax of all scores.

    Raises:
        UnsupportedError: The node has numbers of valid keys.
    """
    op, (mask, *pasts, lengths) = node.op_as(Attention), (*node.inputs[3:], *[None] * 4)[:4]
    if lengths is not None:
        raise UnsupportedError("it has numbers of valid keys, for which it has no gradient")
    q, k, v = (_split(op, b, node.arg(i), i) for i in range(3))
    if pasts[0] is not None:
        k, v = (b("Concat", p, new, axis=2) for p, new in zip(pasts, (k, v), strict=True))
    presents = [k, v] if pasts[0] is not None else []
    heads, size = known_shape(q)[1], known_shape(q)[3]
    k, v = (_repeated(b, t, floordiv(heads, known_shape(t)[1])) for t in (k, v))
    if op.scale is None and not isinstance(size, int):
        raise UnsupportedError("the size of its heads depends on the input")
    scale = int(size) ** -0.5 if op.scale is None else op.scale
    scores = Expression(b, b("MatMul", q, b("Transpose", k, perm=(0, 1, 3, 2)))) * scale
    if op.softcap:
        scores = (scores / op.softcap).apply("Tanh") * op.softcap
    if mask is not None:
        given = Expression(b, mask)
        scores = scores.where(given, -math.inf) if mask.dtype is DType.BOOL else scores + given
    if op.is_causal:
        queries, keys = (known_shape(t)[2] for t in (q, k))
        column = Expression(b, b.count_up(keys))
        row = Expression(b, b("Unsqueeze", b.count_up(queries), b.ints(1)))
        if presents:
            row = row + Expression(b, b.dim(keys - queries))
        scores = scores.where(column <= row, -math.inf)
        if op.left_window_size >= 0:
            scores = scores.where(column >= row - op.left_window_size, -math.inf)
    masked = mask is not None or op.is_causal
    if masked:
        visible = scores > -math.inf
        # The same scores, but gradients end here: in rows without a visible key they are NaN.
        scores = scores.where(visible, -math.inf)
    weights = scores.apply("Softmax", axis=-1)
    if masked:
        weights = weights.where(visible)
    y = b("MatMul", weights.value, v)
    return [y if len(known_shape(node.arg(0))) == 4 else _merged(b, y), *presents]


def _split(op: Attention, b: OpBuilder, value: Value, index: int) -> Value:
    """Returns Q, K or V as [sequences, heads, positions, elements]; `index` says which."""
    batch, heads, length, size = op.heads(value.type, index)
    if len(known_shape(value)) == 4:
        return value
    return b("Transpose", b.reshaped(value, batch, length, heads, size), perm=(0, 2, 1, 3))


def _merged(b: OpBuilder, y: Value) -> Value:
    batch, heads, length, size = known_shape(y)
    return b.reshaped(b("Transpose", y, perm=(0, 2, 1, 3)), batch, length, heads * size)


def _repeated(b: OpBuilder, value: Value, times: Dim) -> Value:
    """Repeats each head of keys or values `times` times."""
    if provably_equal(times, 1):
        return value
    batch, heads, length, size = known_shape(value)
    apart = b("Unsqueeze", value, b.ints(2))
    copies = b("Expand", apart, b.dims((batch, heads, times, length, size)))
    return b.reshaped(copies, batch, heads * times, length, size)
