"""Decompositions for export: ops that ONNX does not have, as ops that it has.

A function gets the node and an `ExportBuilder`, and returns the values that take the place of the
node's outputs. The forms are those that ONNX Runtime's own optimiser knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

import clrt.ops.decompositions.export_rules.attention
import clrt.ops.decompositions.export_rules.trees  # noqa: F401
from clrt.errors import UnsupportedError
from clrt.ir.dims import provably_equal, same_shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names, Node, Value
from clrt.ops.base import Op, all_graphs
from clrt.ops.conv.conv import Conv, Convolution, FusedConv
from clrt.ops.conv.conv_integer import ConvInteger
from clrt.ops.decompositions.export_rules.builder import ExportBuilder, rank_of
from clrt.ops.decompositions.registry import (
    Decomposition,
    DecompositionStage,
    of_class,
    register_decomposition,
)
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.matmul.matmul_nbits import MatMulNBits
from clrt.ops.matmul.rounded_matmul import RoundedMatMul
from clrt.ops.ml.lookup import Lookup
from clrt.ops.ml.svm import SquaredDistance
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.expand import Expand
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.views import Flatten, Identity, Reshape, Unsqueeze
from clrt.ops.norm.group_normalization import GroupNormalization
from clrt.ops.norm.softmax import LogSoftmax, Softmax
from clrt.ops.pointwise.activations import Swish
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.fused import Fused, Literal
from clrt.ops.pointwise.quantize_linear import DequantizeLinear
from clrt.ops.pointwise.round_to_scale import RoundToScale
from clrt.ops.pointwise.table import (
    And,
    Equal,
    IsNaN,
    Mul,
    Or,
    Sub,
    Where,
)
from clrt.ops.reduce.argmax import ArgMax
from clrt.ops.reduce.reduce import ReduceMax, ReduceSum
from clrt.ops.tensor.shape import Shape_

_SIGNED = {4: DType.INT4, 8: DType.INT8}
_UNSIGNED = {4: DType.UINT4, 8: DType.UINT8}


@register_decomposition(Fused, audience=DecompositionStage.EXPORT)
def _fused(node: Node, make: ExportBuilder) -> Sequence[Value]:
    assert isinstance(node.op, Fused)
    return [make.program(node.op.steps, [v for v in node.inputs if v is not None])]


@register_decomposition(Where, audience=DecompositionStage.EXPORT)
def _where(node: Node, make: ExportBuilder) -> Sequence[Value] | None:
    if node.output.dtype is not DType.BOOL:
        return None
    return [make.choice(node.arg(0), node.arg(1), node.arg(2))]


@register_decomposition(Literal, audience=DecompositionStage.EXPORT)
def _literal(node: Node, make: ExportBuilder) -> Sequence[Value]:
    assert isinstance(node.op, Literal)
    return [make(Identity(), make.numbers(node.op.value, node.op.dtype))]


@register_decomposition(FusedMatMul, audience=DecompositionStage.EXPORT)
def _fused_matmul(node: Node, make: ExportBuilder) -> Sequence[Value]:
    op, a, b = node.op, node.arg(0), node.arg(1)
    assert isinstance(op, FusedMatMul)
    a = make.transposed(a) if op.trans_a else a
    b = make.transposed(b) if op.trans_b else b
    if b.dtype is not a.dtype:
        b = make(Cast(a.dtype), b)
    extras = [v for v in node.inputs[2:] if v is not None]
    return [make.program(op.steps, [make(MatMul(), a, b), *extras])]


@register_decomposition(RoundToScale, audience=DecompositionStage.EXPORT)
def _round_to_scale(node: Node, make: ExportBuilder) -> Sequence[Value]:
    return [make.on_scale(*(node.arg(i) for i in range(4)))]


@register_decomposition(Swish, audience=DecompositionStage.EXPORT)
def _swish(node: Node, make: ExportBuilder) -> Sequence[Value]:
    assert isinstance(node.op, Swish)
    return [make.swish(node.op, node.arg(0))]


@register_decomposition(RoundedMatMul, audience=DecompositionStage.EXPORT)
def _rounded_matmul(node: Node, make: ExportBuilder) -> Sequence[Value]:
    op, (a, b, scales, zeros) = node.op, (node.arg(i) for i in range(4))
    assert isinstance(op, RoundedMatMul)
    levels = [make.numbers(n, DType.FLOAT32) for n in (op.scale, op.low, op.high)]
    weight = make(DequantizeLinear(0 if op.trans_b else 1), b, scales, zeros)
    weight = make.transposed(weight) if op.trans_b else weight
    product = make(MatMul(), make.on_scale(a, *levels), weight)
    return [make.program(op.steps, [product, *op.extras(node)])]


@register_decomposition(FusedConv, audience=DecompositionStage.EXPORT)
def _fused_conv(node: Node, make: ExportBuilder) -> Sequence[Value]:
    op = node.op
    assert isinstance(op, FusedConv)
    attributes = {f.name: getattr(op, f.name) for f in fields(Convolution)}
    y = make(Conv(**attributes), *node.inputs[:3])
    return [make.program(op.steps, [y, *op.extras(node)])]


@register_decomposition(Softmax, LogSoftmax, audience=DecompositionStage.EXPORT)
def _flat_softmax(node: Node, make: ExportBuilder) -> Sequence[Value] | None:
    op, x = node.op, node.arg(0)
    assert isinstance(op, (Softmax, LogSoftmax))
    if not op.flatten:
        return None
    flat = make(type(op)(-1), make(Flatten(op.axis), x))
    return [make(Reshape(), flat, make(Shape_(), x))]


@register_decomposition(Lookup, audience=DecompositionStage.EXPORT)
def _lookup(node: Node, make: ExportBuilder) -> Sequence[Value]:
    x, keys, values, default = (node.arg(i) for i in range(4))
    if keys.shape is None:
        raise UnsupportedError(f"{node!r} has keys of no known rank, which its export needs.")
    if provably_equal(keys.shape[0], 0):
        return [make(Expand(), default, make(Shape_(), x))]
    last = make.numbers([-1])
    column = make(Unsqueeze(), x, last)
    found = make(Equal(), column, keys)
    if x.dtype.is_float:
        both = make(And(), make(IsNaN(), column), make(IsNaN(), keys))
        found = make(Or(), found, both)
    hits = make(Cast(DType.INT32), found)
    hit = make(Cast(DType.BOOL), make(ReduceMax(keepdims=False), hits, last))
    place = make(ArgMax(-1, keepdims=False), hits)
    # The default stands behind the values: ONNX Runtime gathers every dtype, and not all in Where.
    place = make(Where(), hit, place, make.dim(keys.shape[0]))
    table = make(Concat(0), values, make(Reshape(), default, make.numbers([1])))
    return [make(Gather(0), table, place)]


@register_decomposition(SquaredDistance, audience=DecompositionStage.EXPORT)
def _squared_distance(node: Node, make: ExportBuilder) -> Sequence[Value]:
    rows = make(Unsqueeze(), node.arg(0), make.numbers([1]))
    apart = make(Sub(), rows, node.arg(1))
    return [make(ReduceSum(keepdims=False), make(Mul(), apart, apart), make.numbers([2]))]


def _is_dequantized(node: Node, op: MatMulNBits) -> bool:
    """Whether DequantizeLinear computes the same: its zero points must be levels. The pass that
    makes this op of one (`fuse_dequantized_matmul`) stores them as floats."""
    zero = node.input(3)
    if zero is None or zero.numbers is None or zero.dtype is DType.UINT8 or op.bits not in _SIGNED:
        return False
    points = op.zero_points(zero.numbers)
    return bool(np.all((points == np.rint(points)) & (points >= 0) & (points < 1 << op.bits)))


@register_decomposition(MatMulNBits, audience=DecompositionStage.EXPORT)
def _matmul_nbits(node: Node, make: ExportBuilder) -> Sequence[Value] | None:
    """DequantizeLinear and MatMul where these compute the same; else without the epilogue."""
    op = node.op
    assert isinstance(op, MatMulNBits)
    if _is_dequantized(node, op):
        return [_dequantized_matmul(node, make)]
    if not op.steps:
        return None
    return [_finished(node, make(replace(op, steps=()), *node.inputs[:5]), make)]


def _dequantized_matmul(node: Node, make: ExportBuilder) -> Value:
    """The form before the pass, for which ONNX Runtime chooses the kernel of the original."""
    op, a = node.op, node.arg(0)
    assert isinstance(op, MatMulNBits)
    weights, scales, zeros = (node.arg(i).numbers for i in (1, 2, 3))
    assert weights is not None and scales is not None and zeros is not None
    points, middle = op.zero_points(zeros), 1 << (op.bits - 1)
    signed = bool(np.all(points == middle))
    offset, dtype = (middle, _SIGNED[op.bits]) if signed else (0, _UNSIGNED[op.bits])
    levels = make.numbers(op.levels(weights, op.K).T.astype(np.int16) - offset, dtype)
    kinds = [(op.scales(scales), a.dtype)]
    if op.bits == 8 or not signed:  # ONNX Runtime's kernels for 8 bits ask for zero points
        kinds.append((points - offset, dtype))
    parameters = [
        make.numbers(array[:, 0] if op.blocks == 1 else array.T, kind) for array, kind in kinds
    ]
    blocked = DequantizeLinear(0, op.block_size)
    rule = DequantizeLinear(1) if op.blocks == 1 else blocked
    return _finished(node, make(MatMul(), a, make(rule, levels, *parameters)), make)


def _finished(node: Node, product: Value, make: ExportBuilder) -> Value:
    """A product with the epilogue of its node."""
    assert isinstance(node.op, MatMulNBits)
    return make.program(node.op.program(node.input_types), [product, *node.op.extras(node)])


def _has_zero_points(node: Node) -> bool:
    """Whether the weights of a convolution may have more than one zero point."""
    zeros = node.input(3)
    return zeros is not None and zeros.shape != () and not same_shape(zeros.shape, (1,))


@register_decomposition(ConvInteger, audience=DecompositionStage.EXPORT)
def _conv_integer(node: Node, make: ExportBuilder) -> Sequence[Value] | None:
    """ONNX Runtime's has one zero point: where they differ, their product is subtracted."""
    if not _has_zero_points(node):
        return None
    zeros, weights = node.arg(3), node.arg(1)
    if zeros.numbers is not None and len(set(zeros.numbers.flat)) == 1:
        one = make.numbers(zeros.numbers.flat[0], zeros.dtype)
        return [make(node.op, *node.inputs[:3], one)]
    column = make(Reshape(), zeros, make.numbers([-1] + [1] * (rank_of(weights) - 1)))
    every = make(Expand(), column, make(Shape_(), weights))
    sums = (make(node.op, node.arg(0), w, node.input(2)) for w in (weights, every))
    return [make(Sub(), *sums)]


@register_decomposition(GroupNormalization, audience=DecompositionStage.EXPORT)
def _scaled_by_channel(node: Node, make: ExportBuilder) -> Sequence[Value] | None:
    """ONNX has deprecated the form with a scale per group."""
    op, (x, *affine) = node.op, [v for v in node.inputs if v is not None]
    assert isinstance(op, GroupNormalization)
    if not op.per_group:
        return None
    channels = None if x.shape is None else x.shape[1]
    if not isinstance(channels, int):
        raise UnsupportedError(f"'{x.name}' has no known channels, which its export needs.")
    wide, flat = make.numbers([1, channels // op.num_groups]), make.numbers([-1])
    columns = (make(Unsqueeze(), v, make.numbers([1])) for v in affine)
    repeated = [make(Reshape(), make(Expand(), v, wide), flat) for v in columns]
    return [make(replace(op, per_group=False), x, *repeated)]


def check_decomposable(graph: Graph) -> None:
    """Refuses a graph with ops of clrt's own that have no form in ONNX.

    Raises:
        UnsupportedError: There are such; it names all of them.
    """
    nodes = [n for g in all_graphs(graph) for n in g.nodes]
    bad = [repr(n) for n in nodes if n.op.domain == "clrt" and _entry(n) is None]
    if bad:
        raise UnsupportedError(
            f"ONNX has no form for {', '.join(bad)}; keep the original model for ONNX Runtime, or "
            "add a decomposition in clrt/ops/decompositions/export_rules/general.py.",
            bad,
        )


def _entry(node: Node) -> Decomposition | None:
    assert isinstance(node.op, Op)
    return of_class(type(node.op), DecompositionStage.EXPORT)


def decompose_all(graph: Graph) -> Graph:
    """A copy of a graph without ops of clrt's own; subgraphs stay as they are."""
    copy = graph.copy()
    single = frozenset(v for v, users in copy.users().items() if v.is_constant and len(users) == 1)
    names = Names(copy.names())
    nodes: list[Node] = []
    for node in copy.nodes:
        entry = _entry(node)
        make = ExportBuilder(node, names, single)
        found = None if entry is None else entry.apply(node, make)
        if found is None:
            nodes.append(node)
            continue
        results = [
            value if value.producer in make.nodes else make(Identity(), value)
            for value in found
            if value is not None
        ]
        _take_over(node, dict(zip(results, node.outputs, strict=True)), make.nodes)
        nodes += make.nodes
    copy.nodes = nodes
    return copy


def _take_over(node: Node, results: dict[Value, Value], nodes: Sequence[Node]) -> None:
    """Gives new nodes the outputs of the node that they replace."""
    nodes[-1].name = node.name
    for made in nodes:
        made.inputs = [None if v is None else results.get(v, v) for v in made.inputs]
        made.outputs = [results.get(v, v) for v in made.outputs]
        for output in made.outputs:
            output.producer = made
