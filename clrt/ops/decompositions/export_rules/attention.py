"""Exports fused attention and rotary embeddings as ONNX ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.attention.fused_rotary import FusedRotary
from clrt.ops.attention.update_cache import UpdateCache
from clrt.ops.decompositions.export_rules.builder import ExportBuilder
from clrt.ops.decompositions.lowering_rules.update_cache import update_parts
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.movement.concat import Split
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Unsqueeze
from clrt.ops.norm.softmax import Softmax
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import (
    Add,
    And,
    Div,
    Equal,
    GreaterOrEqual,
    Less,
    Mul,
    Sub,
    Tanh,
    Where,
)
from clrt.ops.reduce.reduce import ReduceMax

# Permutation that swaps the axes of tokens and heads.
_BY_HEAD = (0, 2, 1, 3)


@register_decomposition(FusedAttention, audience=DecompositionStage.EXPORT)
def _fused_attention(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    op = node.op_as(FusedAttention)
    q, k, v = _projections(node, builder)
    groups = op.num_heads // op.kv_num_heads
    queries = _heads(q, op.num_heads, op.head_size, _BY_HEAD, builder)
    keys = _heads(k, op.kv_num_heads, op.head_size, (0, 2, 3, 1), builder)
    values = _heads(v, op.kv_num_heads, op.v_head_size, _BY_HEAD, builder)
    if groups > 1:
        shared = builder.numbers(np.repeat(np.arange(op.kv_num_heads), groups))
        keys, values = (builder(Gather(1), x, shared) for x in (keys, values))
    scores = builder(MatMul(), queries, keys)
    if op.scale != 1:
        scores = builder(Mul(), scores, builder.numbers(op.scale, q.dtype))
    if op.softcap > 0:
        cap = builder.numbers(op.softcap, q.dtype)
        scores = builder(Mul(), builder(Tanh(), builder(Div(), scores, cap)), cap)
    bias = _bias(node, q, k, builder)
    if bias is not None:
        scores = builder(Add(), scores, bias)
    result = builder(MatMul(), builder(Softmax(-1), scores), values)
    if (op.nan_to_zero or node.input(4)) and bias is not None:
        # Computed from the mask, which all heads and possibly all layers share.
        top = builder(ReduceMax(keepdims=True), bias, builder.numbers([-1]))
        hidden = builder(Equal(), top, builder.numbers(-np.inf, q.dtype))
        result = builder(Where(), hidden, builder.numbers(0, q.dtype), result)
    return [builder.merge_heads(result, op.num_heads * op.v_head_size)]


@register_decomposition(FusedRotary, audience=DecompositionStage.EXPORT)
def _fused_rotary(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    op, x, cos, sin = node.op_as(FusedRotary), node.arg(0), node.arg(1), node.arg(2)
    half, width = op.head_size // 2, op.num_heads * op.head_size
    if x.type.rank == 3:
        x = builder.columns(x, op.offset, width)
    heads = _heads(x, op.num_heads, op.head_size, _BY_HEAD, builder)
    halves = [builder.columns(heads, start, half) for start in (0, half)]
    return [builder.merge_heads(builder.rotated(heads, halves, cos, sin), width)]


@register_decomposition(UpdateCache, audience=DecompositionStage.EXPORT)
def _update_cache(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    return update_parts(node, builder)


def _bias(node: Node, q: Value, k: Value, builder: ExportBuilder) -> Value | None:
    """Returns the additive bias of attention scores: the node's mask, and -inf for hidden keys.

    Args:
        node: FusedAttention node.
        q: Queries, sliced from the node's inputs.
        k: Keys, sliced from the node's inputs.
        builder: Adds the nodes.

    Returns:
        The bias; None if the node has no mask and hides no keys.
    """
    mask, op = node.input(3), node.op_as(FusedAttention)
    if mask is not None and op.by_distance:
        rows, columns, (queries, _) = _positions(q, k, builder)
        last = builder(Sub(), queries, builder.numbers(1))
        first = builder(Sub(), last, builder(Unsqueeze(), rows, builder.numbers([1])))
        mask = builder(Gather(1), mask, builder(Add(), columns, first))
    if mask is not None and mask.dtype is DType.BOOL:
        mask = _additive(mask, q.dtype, builder)
    seen = _visible_keys(node, q, k, builder)
    if seen is None:
        return mask
    hidden = _additive(seen, q.dtype, builder)
    return hidden if mask is None else builder(Add(), mask, hidden)


def _projections(node: Node, builder: ExportBuilder) -> tuple[Value, Value, Value]:
    """Returns queries, keys and values, sliced from the inputs of a FusedAttention node."""
    op = node.op_as(FusedAttention)
    values = [node.arg(i) for i in range(3)]
    starts = [op.q_offset, op.k_offset, op.v_offset]
    widths = [
        op.num_heads * op.head_size,
        op.kv_num_heads * op.head_size,
        op.kv_num_heads * op.v_head_size,
    ]
    side_by_side = starts == [0, widths[0], widths[0] + widths[1]]
    if side_by_side and values[0] is values[1] is values[2] and _width(values[0]) == sum(widths):
        q, k, v = builder.add_all(Split(-1), values[0], builder.numbers(widths))
        return q, k, v
    parts = []
    for value, start, width in zip(values, starts, widths, strict=True):
        parts.append(builder.columns(value, start, width) if value.type.rank == 3 else value)
    return parts[0], parts[1], parts[2]


def _width(value: Value) -> Dim | None:
    """Returns the size of the last axis of a value; None if its rank is unknown."""
    return None if value.shape is None else value.shape[-1]


def _heads(x: Value, count: int, size: int, perm: tuple[int, ...], builder: ExportBuilder) -> Value:
    """Splits the last axis of x into heads, and permutes the axes.

    Args:
        x: `[batch, tokens, heads * size]`, or `[batch, heads, tokens, size]`, already split.
        count: Number of heads.
        size: Elements per head.
        perm: Permutation of `[batch, tokens, heads, size]`: to `[batch, heads, tokens, size]` or
            `[batch, heads, size, tokens]`.
        builder: Adds the nodes.
    """
    if x.type.rank == 4:
        return x if perm == _BY_HEAD else builder(Transpose((0, 1, 3, 2)), x)
    return builder.split_heads(x, count, size, perm)


def _additive(mask: Value, dtype: DType, builder: ExportBuilder) -> Value:
    """Converts a bool mask to an additive mask of a dtype: 0 for true, -inf for false."""
    return builder(Where(), mask, builder.numbers(0, dtype), builder.numbers(-np.inf, dtype))


def _positions(q: Value, k: Value, builder: ExportBuilder) -> tuple[Value, Value, list[Value]]:
    """Returns the positions and numbers of queries and keys.

    Args:
        q: Queries, `[…, queries, size]`.
        k: Keys, `[…, keys, size]`.
        builder: Adds the nodes.

    Returns:
        Query positions 0, 1, 2, …, int64 `[queries]`; key positions, int64 `[keys]`; and two
        scalars, the numbers of queries and of keys.

    Raises:
        UnsupportedError: The rank of q or k is unknown.
    """
    if q.shape is None or k.shape is None:
        raise UnsupportedError(f"'{q.name}' has no known rank, which its export needs.")
    lengths = (q.shape[-2], k.shape[-2])
    rows, columns = map(builder.count_up, lengths)
    return rows, columns, [builder.dim(n) for n in lengths]


def _visible_keys(node: Node, q: Value, k: Value, builder: ExportBuilder) -> Value | None:
    """Returns which keys each query may see, by causality, window and sequence lengths.

    Args:
        node: FusedAttention node.
        q: Queries, `[…, queries, size]`.
        k: Keys, `[…, keys, size]`.
        builder: Adds the nodes.

    Returns:
        bool that broadcasts to `[batch, 1, queries, keys]`; None if every query sees all keys.
    """
    op, lengths = node.op_as(FusedAttention), node.input(4)
    if lengths is None and not op.is_causal:
        return None
    rows, columns, sizes = _positions(q, k, builder)
    seen, count = None, sizes[1]
    if lengths is not None:
        count = builder(
            Unsqueeze(), builder(Cast(DType.INT64), lengths), builder.numbers([1, 2, 3])
        )
        seen = builder(Less(), columns, count)
    if op.is_causal:
        positions = builder(Unsqueeze(), rows, builder.numbers([1]))
        if op.at_end:
            positions = builder(Add(), positions, builder(Sub(), count, sizes[0]))
        behind = builder(GreaterOrEqual(), positions, columns)
        seen = behind if seen is None else builder(And(), seen, behind)
        if op.left_window >= 0:
            oldest = builder(Sub(), positions, builder.numbers(op.left_window))
            seen = builder(And(), seen, builder(GreaterOrEqual(), columns, oldest))
    return seen
