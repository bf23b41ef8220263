"""Decompositions at export: replace ops that ONNX lacks with ops that it has.

A rule gets the node and an `ExportBuilder`, and returns the values that replace the node's outputs.
It uses patterns that ONNX Runtime's optimizer recognizes.
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
from clrt.ir.graph import Graph, Names, Node, Value, all_graphs
from clrt.ops.base import Op
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
def _fused(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    return [builder.program(node.op_as(Fused).steps, [v for v in node.inputs if v is not None])]


@register_decomposition(Where, audience=DecompositionStage.EXPORT)
def _where(node: Node, builder: ExportBuilder) -> Sequence[Value] | None:
    if node.output.dtype is not DType.BOOL:
        return None
    return [builder.choice(node.arg(0), node.arg(1), node.arg(2))]


@register_decomposition(Literal, audience=DecompositionStage.EXPORT)
def _literal(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    op = node.op_as(Literal)
    return [builder(Identity(), builder.numbers(op.value, op.dtype))]


@register_decomposition(FusedMatMul, audience=DecompositionStage.EXPORT)
def _fused_matmul(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    op, a, b = node.op_as(FusedMatMul), node.arg(0), node.arg(1)
    a = builder.transposed(a) if op.trans_a else a
    b = builder.transposed(b) if op.trans_b else b
    b = builder.cast(b, a.dtype)
    extras = [v for v in node.inputs[2:] if v is not None]
    return [builder.program(op.steps, [builder(MatMul(), a, b), *extras])]


@register_decomposition(RoundToScale, audience=DecompositionStage.EXPORT)
def _round_to_scale(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    return [builder.on_scale(*(node.arg(i) for i in range(4)))]


@register_decomposition(Swish, audience=DecompositionStage.EXPORT)
def _swish(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    return [builder.swish(node.op_as(Swish), node.arg(0))]


@register_decomposition(RoundedMatMul, audience=DecompositionStage.EXPORT)
def _rounded_matmul(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    op, (a, b, scales, zeros) = node.op_as(RoundedMatMul), (node.arg(i) for i in range(4))
    levels = [builder.numbers(n, DType.FLOAT32) for n in (op.scale, op.low, op.high)]
    weight = builder(DequantizeLinear(0 if op.trans_b else 1), b, scales, zeros)
    weight = builder.transposed(weight) if op.trans_b else weight
    product = builder(MatMul(), builder.on_scale(a, *levels), weight)
    return [builder.program(op.steps, [product, *op.extras(node)])]


@register_decomposition(FusedConv, audience=DecompositionStage.EXPORT)
def _fused_conv(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    op = node.op_as(FusedConv)
    attributes = {f.name: getattr(op, f.name) for f in fields(Convolution)}
    y = builder(Conv(**attributes), *node.inputs[:3])
    return [builder.program(op.steps, [y, *op.extras(node)])]


@register_decomposition(Softmax, LogSoftmax, audience=DecompositionStage.EXPORT)
def _flat_softmax(node: Node, builder: ExportBuilder) -> Sequence[Value] | None:
    op, x = node.op_as(Softmax, LogSoftmax), node.arg(0)
    if not op.flatten:
        return None
    flat = builder(type(op)(-1), builder(Flatten(op.axis), x))
    return [builder(Reshape(), flat, builder(Shape_(), x))]


@register_decomposition(Lookup, audience=DecompositionStage.EXPORT)
def _lookup(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    """Exports Lookup, which maps x from keys to values, by comparison of x with all keys.

    Raises:
        UnsupportedError: The rank of the keys is unknown.
    """
    x, keys, values, default = (node.arg(i) for i in range(4))
    if keys.shape is None:
        raise UnsupportedError(f"{node!r} has keys of no known rank, which its export needs.")
    if provably_equal(keys.shape[0], 0):
        return [builder(Expand(), default, builder(Shape_(), x))]
    last = builder.numbers([-1])
    column = builder(Unsqueeze(), x, last)
    matches = builder(Equal(), column, keys)
    if x.dtype.is_float:
        both_nan = builder(And(), builder(IsNaN(), column), builder(IsNaN(), keys))
        matches = builder(Or(), matches, both_nan)
    match_ints = builder(Cast(DType.INT32), matches)
    has_match = builder(Cast(DType.BOOL), builder(ReduceMax(keepdims=False), match_ints, last))
    index = builder(ArgMax(-1, keepdims=False), match_ints)
    # The default is the last table row: ONNX Runtime's Gather supports every dtype, its Where does
    # not.
    index = builder(Where(), has_match, index, builder.dim(keys.shape[0]))
    table = builder(Concat(0), values, builder(Reshape(), default, builder.numbers([1])))
    return [builder(Gather(0), table, index)]


@register_decomposition(SquaredDistance, audience=DecompositionStage.EXPORT)
def _squared_distance(node: Node, builder: ExportBuilder) -> Sequence[Value]:
    rows = builder(Unsqueeze(), node.arg(0), builder.numbers([1]))
    differences = builder(Sub(), rows, node.arg(1))
    return [
        builder(
            ReduceSum(keepdims=False),
            builder(Mul(), differences, differences),
            builder.numbers([2]),
        )
    ]


def _is_dequantized(node: Node, op: MatMulNBits) -> bool:
    """Returns whether DequantizeLinear and MatMul compute the same as a MatMulNBits node.

    They do if the zero points are constant floats with integer values in the range of the levels,
    and ONNX has a signed dtype with the bits of the weights.
    The pass that creates MatMulNBits from the two ops (`fuse_dequantized_matmul`) stores zero
    points as floats.
    """
    zero = node.input(3)
    if zero is None or zero.numbers is None or zero.dtype is DType.UINT8 or op.bits not in _SIGNED:
        return False
    points = op.zero_points(zero.numbers)
    return bool(np.all((points == np.rint(points)) & (points >= 0) & (points < 1 << op.bits)))


@register_decomposition(MatMulNBits, audience=DecompositionStage.EXPORT)
def _matmul_nbits(node: Node, builder: ExportBuilder) -> Sequence[Value] | None:
    """Exports MatMulNBits as DequantizeLinear and MatMul if they compute the same.

    Otherwise its epilogue becomes separate nodes. Returns None, to export the node as it is, if it
    has no epilogue.
    """
    op = node.op_as(MatMulNBits)
    if _is_dequantized(node, op):
        return [_dequantized_matmul(node, builder)]
    if not op.steps:
        return None
    return [_add_epilogue(node, builder(replace(op, steps=()), *node.inputs[:5]), builder)]


def _dequantized_matmul(node: Node, builder: ExportBuilder) -> Value:
    """Exports MatMulNBits as DequantizeLinear and MatMul, and returns the result.

    This is the pattern that clrt fused, so ONNX Runtime chooses the kernel of the original model.
    """
    op, a = node.op_as(MatMulNBits), node.arg(0)
    weights, scales, zeros = (node.arg(i).numbers for i in (1, 2, 3))
    assert weights is not None and scales is not None and zeros is not None
    points, middle = op.zero_points(zeros), 1 << (op.bits - 1)
    signed = bool(np.all(points == middle))
    offset, dtype = (middle, _SIGNED[op.bits]) if signed else (0, _UNSIGNED[op.bits])
    levels = builder.numbers(op.levels(weights, op.K).T.astype(np.int16) - offset, dtype)
    kinds = [(op.scales(scales), a.dtype)]
    if op.bits == 8 or not signed:  # ONNX Runtime's 8-bit kernels require zero points
        kinds.append((points - offset, dtype))
    parameters = [
        builder.numbers(array[:, 0] if op.blocks == 1 else array.T, kind) for array, kind in kinds
    ]
    blocked = DequantizeLinear(0, op.block_size)
    rule = DequantizeLinear(1) if op.blocks == 1 else blocked
    return _add_epilogue(node, builder(MatMul(), a, builder(rule, levels, *parameters)), builder)


def _add_epilogue(node: Node, product: Value, builder: ExportBuilder) -> Value:
    """Adds the epilogue of a MatMulNBits node to its matrix product; returns the result."""
    op = node.op_as(MatMulNBits)
    return builder.program(op.program(node.input_types), [product, *op.extras(node)])


def _has_zero_points(node: Node) -> bool:
    """Returns whether the weights of a ConvInteger node may have more than one zero point."""
    zeros = node.input(3)
    return zeros is not None and zeros.shape != () and not same_shape(zeros.shape, (1,))


@register_decomposition(ConvInteger, audience=DecompositionStage.EXPORT)
def _conv_integer(node: Node, builder: ExportBuilder) -> Sequence[Value] | None:
    """Exports ConvInteger with a zero point per output channel, which ONNX Runtime lacks.

    The replacement is the difference of two convolutions, with weights and with zero points; or one
    convolution if all zero points are equal. Returns None, to export the node as it is, if there is
    at most one zero point.
    """
    if not _has_zero_points(node):
        return None
    zeros, weights = node.arg(3), node.arg(1)
    if zeros.numbers is not None and len(set(zeros.numbers.flat)) == 1:
        one = builder.numbers(zeros.numbers.flat[0], zeros.dtype)
        return [builder(node.op, *node.inputs[:3], one)]
    column = builder(Reshape(), zeros, builder.numbers([-1] + [1] * (rank_of(weights) - 1)))
    every = builder(Expand(), column, builder(Shape_(), weights))
    sums = (builder(node.op, node.arg(0), w, node.input(2)) for w in (weights, every))
    return [builder(Sub(), *sums)]


@register_decomposition(GroupNormalization, audience=DecompositionStage.EXPORT)
def _scaled_by_channel(node: Node, builder: ExportBuilder) -> Sequence[Value] | None:
    """Exports GroupNormalization with scales and biases per group, which ONNX has deprecated.

    The new node has scales and biases per channel: each is repeated for the channels of its group.
    Returns None, to export the node as it is, if scales are per channel already.

    Raises:
        UnsupportedError: The number of channels is unknown.
    """
    op, (x, *affine) = node.op_as(GroupNormalization), [v for v in node.inputs if v is not None]
    if not op.per_group:
        return None
    channels = None if x.shape is None else x.shape[1]
    if not isinstance(channels, int):
        raise UnsupportedError(f"'{x.name}' has no known channels, which its export needs.")
    wide, flat = builder.numbers([1, channels // op.num_groups]), builder.numbers([-1])
    columns = (builder(Unsqueeze(), v, builder.numbers([1])) for v in affine)
    repeated = [builder(Reshape(), builder(Expand(), v, wide), flat) for v in columns]
    return [builder(replace(op, per_group=False), x, *repeated)]


def check_decomposable(graph: Graph) -> None:
    """Checks that all clrt-specific ops of a graph and its subgraphs can be exported as ONNX ops.

    Raises:
        UnsupportedError: Some ops cannot; the message names all their nodes.
    """
    nodes = [n for g in all_graphs(graph) for n in g.nodes]
    bad = [repr(n) for n in nodes if n.op.domain == "clrt" and _entry(n) is None]
    if bad:
        raise UnsupportedError(
            f"ONNX cannot represent {', '.join(bad)}; keep the original model for ONNX Runtime, or "
            "add a decomposition in clrt/ops/decompositions/export_rules/general.py.",
            bad,
        )


def _entry(node: Node) -> Decomposition | None:
    """Returns the export decomposition of a node's op; None if it has none."""
    return of_class(type(node.op_as(Op)), DecompositionStage.EXPORT)


def decompose_all(graph: Graph) -> Graph:
    """Returns a copy of a graph in which ONNX ops replace clrt-specific ops.

    Subgraphs are unchanged.
    """
    copy = graph.copy()
    single = frozenset(v for v, users in copy.users().items() if v.is_constant and len(users) == 1)
    names = Names(copy.names())
    nodes: list[Node] = []
    for node in copy.nodes:
        entry = _entry(node)
        builder = ExportBuilder(node, names, single)
        replacements = None if entry is None else entry.apply(node, builder)
        if replacements is None:
            nodes.append(node)
            continue
        results = [
            value if value.producer in builder.nodes else builder(Identity(), value)
            for value in replacements
            if value is not None
        ]
        _rename_outputs(node, dict(zip(results, node.outputs, strict=True)), builder.nodes)
        nodes += builder.nodes
    copy.nodes = nodes
    return copy


def _rename_outputs(node: Node, results: dict[Value, Value], nodes: Sequence[Node]) -> None:
    """Makes new nodes compute the outputs of the node that they replace.

    The last new node also gets the name of the replaced node.

    Args:
        node: Replaced node.
        results: For each value that a new node computes in place of an output of `node`, this
            output.
        nodes: New nodes; at least one.
    """
    nodes[-1].name = node.name
    for new_node in nodes:
        new_node.inputs = [None if v is None else results.get(v, v) for v in new_node.inputs]
        new_node.outputs = [results.get(v, v) for v in new_node.outputs]
        for output in new_node.outputs:
            output.producer = new_node
