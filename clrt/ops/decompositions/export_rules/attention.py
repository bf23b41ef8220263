"""Fused attention and rotary embeddings as ops that ONNX has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.attention.fused_rotary import FusedRotary
from clrt.ops.attention.update_cache import UpdateCache, update_parts
from clrt.ops.decompositions.export_rules.builder import ExportBuilder
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.movement.concat import Concat, Split
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Reshape, Unsqueeze
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
    Neg,
    Sub,
    Tanh,
    Where,
)
from clrt.ops.reduce.reduce import ReduceMax
from clrt.ops.tensor.range import Range

_BY_HEAD = (0, 2, 1, 3)


@register_decomposition(FusedAttention, audience=DecompositionStage.EXPORT)
def _fused_attention(node: Node, make: ExportBuilder) -> Sequence[Value]:
    op = node.op
    assert isinstance(op, FusedAttention)
    q, k, v = _projections(node, make)
    groups = op.num_heads // op.kv_num_heads
    queries = _heads(q, op.num_heads, op.head_size, _BY_HEAD, make)
    keys = _heads(k, op.kv_num_heads, op.head_size, (0, 2, 3, 1), make)
    values = _heads(v, op.kv_num_heads, op.v_head_size, _BY_HEAD, make)
    if groups > 1:
        shared = make.numbers(np.repeat(np.arange(op.kv_num_heads), groups))
        keys, values = (make(Gather(1), x, shared) for x in (keys, values))
    scores = make(MatMul(), queries, keys)
    if op.scale != 1:
        scores = make(Mul(), scores, make.numbers(op.scale, q.dtype))
    if op.softcap > 0:
        cap = make.numbers(op.softcap, q.dtype)
        scores = make(Mul(), make(Tanh(), make(Div(), scores, cap)), cap)
    bias = _bias(node, q, k, make)
    if bias is not None:
        scores = make(Add(), scores, bias)
    result = make(MatMul(), make(Softmax(-1), scores), values)
    if (op.nan_to_zero or node.input(4)) and bias is not None:
        # Of the mask alone, which all heads and perhaps all layers share.
        top = make(ReduceMax(keepdims=True), bias, make.numbers([-1]))
        hidden = make(Equal(), top, make.numbers(-np.inf, q.dtype))
        result = make(Where(), hidden, make.numbers(0, q.dtype), result)
    merged = make(Transpose((0, 2, 1, 3)), result)
    width = op.num_heads * op.v_head_size
    return [make(Reshape(), merged, make.numbers([0, 0, width]))]


@register_decomposition(FusedRotary, audience=DecompositionStage.EXPORT)
def _fused_rotary(node: Node, make: ExportBuilder) -> Sequence[Value]:
    op, x, cos, sin = node.op, node.arg(0), node.arg(1), node.arg(2)
    assert isinstance(op, FusedRotary)
    half, width = op.head_size // 2, op.num_heads * op.head_size
    if x.type.rank == 3:
        x = make.columns(x, op.offset, width)
    heads = _heads(x, op.num_heads, op.head_size, _BY_HEAD, make)
    first, second = make.columns(heads, 0, half), make.columns(heads, half, half)
    turned = make(Concat(-1), make(Neg(), second), first)
    result = make(Add(), make(Mul(), heads, cos), make(Mul(), turned, sin))
    merged = make(Transpose(_BY_HEAD), result)
    return [make(Reshape(), merged, make.numbers([0, 0, width]))]


@register_decomposition(UpdateCache, audience=DecompositionStage.EXPORT)
def _update_cache(node: Node, make: ExportBuilder) -> Sequence[Value]:
    return update_parts(node, make)


def _bias(node: Node, q: Value, k: Value, make: ExportBuilder) -> Value | None:
    """What is added to the scores: the mask, and -inf for keys that a query does not see."""
    mask, op = node.input(3), node.op
    assert isinstance(op, FusedAttention)
    if mask is not None and op.by_distance:
        rows, columns, (queries, _) = _places(q, k, make)
        last = make(Sub(), queries, make.numbers(1))
        first = make(Sub(), last, make(Unsqueeze(), rows, make.numbers([1])))
        mask = make(Gather(1), mask, make(Add(), columns, first))
    if mask is not None and mask.dtype is DType.BOOL:
        mask = _additive(mask, q.dtype, make)
    seen = _seen(node, q, k, make)
    if seen is None:
        return mask
    hidden = _additive(seen, q.dtype, make)
    return hidden if mask is None else make(Add(), mask, hidden)


def _projections(node: Node, make: ExportBuilder) -> tuple[Value, Value, Value]:
    """The columns of q, k and v."""
    op = node.op
    assert isinstance(op, FusedAttention)
    values = [node.arg(i) for i in range(3)]
    starts = [op.q_offset, op.k_offset, op.v_offset]
    widths = [
        op.num_heads * op.head_size,
        op.kv_num_heads * op.head_size,
        op.kv_num_heads * op.v_head_size,
    ]
    side_by_side = starts == [0, widths[0], widths[0] + widths[1]]
    if side_by_side and values[0] is values[1] is values[2] and _width(values[0]) == sum(widths):
        q, k, v = make.add_all(Split(-1), values[0], make.numbers(widths))
        return q, k, v
    parts = []
    for value, start, width in zip(values, starts, widths, strict=True):
        parts.append(make.columns(value, start, width) if value.type.rank == 3 else value)
    return parts[0], parts[1], parts[2]


def _width(value: Value) -> Dim | None:
    return None if value.shape is None else value.shape[-1]


def _heads(x: Value, count: int, size: int, perm: tuple[int, ...], make: ExportBuilder) -> Value:
    """Heads transposed by `perm`, of [B, S, heads*size] or of [B, heads, S, size]."""
    if x.type.rank == 4:
        return x if perm == _BY_HEAD else make(Transpose((0, 1, 3, 2)), x)
    split = make(Reshape(), x, make.numbers([0, 0, count, size]))
    return make(Transpose(perm), split)


def _additive(mask: Value, dtype: DType, make: ExportBuilder) -> Value:
    """A bool mask as one to add: 0 where it is true, -inf elsewhere."""
    return make(Where(), mask, make.numbers(0, dtype), make.numbers(-np.inf, dtype))


def _places(q: Value, k: Value, make: ExportBuilder) -> tuple[Value, Value, list[Value]]:
    """The numbers of queries, int64 [Sq], those of keys [Sk], and how many there are of each."""
    if q.shape is None or k.shape is None:
        raise UnsupportedError(f"'{q.name}' has no known rank, which its export needs.")
    zero, one = make.numbers(0), make.numbers(1)
    sizes = [make.dim(x.shape[-2]) for x in (q, k) if x.shape]
    rows, columns = (make(Range(), zero, n, one) for n in sizes)
    return rows, columns, sizes


def _seen(node: Node, q: Value, k: Value, make: ExportBuilder) -> Value | None:
    """bool[Sq, Sk] or [B, 1, Sq, Sk]: the keys that a query sees by its place; None for all."""
    op, lengths = node.op, node.input(4)
    assert isinstance(op, FusedAttention)
    if lengths is None and not op.is_causal:
        return None
    rows, columns, sizes = _places(q, k, make)
    seen, count = None, sizes[1]
    if lengths is not None:
        count = make(Unsqueeze(), make(Cast(DType.INT64), lengths), make.numbers([1, 2, 3]))
        seen = make(Less(), columns, count)
    if op.is_causal:
        places = make(Unsqueeze(), rows, make.numbers([1]))
        if op.at_end:
            places = make(Add(), places, make(Sub(), count, sizes[0]))
        behind = make(GreaterOrEqual(), places, columns)
        seen = behind if seen is None else make(And(), seen, behind)
        if op.left_window >= 0:
            oldest = make(Sub(), places, make.numbers(op.left_window))
            seen = make(And(), seen, make(GreaterOrEqual(), columns, oldest))
    return seen
