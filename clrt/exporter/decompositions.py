"""Ops that ONNX does not have, as ops that it has: one function per class, in `TABLE`.

A function gets the node and a `Maker`, and returns the values that take the place of the node's
outputs. The forms are those that ONNX Runtime's own optimiser knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from clrt.errors import UnsupportedError
from clrt.exporter.trees import trees
from clrt.ir.dims import Dim, same, same_shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names, Node, Value
from clrt.ir.op import IrOp, Step, TensorType
from clrt.ops.argmax import ArgMax
from clrt.ops.base import Op, all_graphs
from clrt.ops.cast import Cast
from clrt.ops.concat import Concat, Split
from clrt.ops.conv_integer import ConvInteger
from clrt.ops.decision_trees import DecisionTrees
from clrt.ops.expand import Expand
from clrt.ops.fused import Fused, Literal
from clrt.ops.fused_attention import FusedAttention
from clrt.ops.fused_matmul import FusedMatMul
from clrt.ops.fused_rotary import FusedRotary
from clrt.ops.gather import Gather
from clrt.ops.group_normalization import GroupNormalization
from clrt.ops.lookup import Lookup
from clrt.ops.matmul import MatMul
from clrt.ops.matmul_nbits import MatMulNBits
from clrt.ops.pointwise import (
    Add,
    And,
    Equal,
    GreaterOrEqual,
    IsNaN,
    Mul,
    Neg,
    Not,
    Or,
    Sub,
    Where,
)
from clrt.ops.quantize_linear import DequantizeLinear
from clrt.ops.range import Range
from clrt.ops.reduce import ReduceMax, ReduceSum
from clrt.ops.shape import Shape_
from clrt.ops.slice import Slice
from clrt.ops.softmax import LogSoftmax, Softmax
from clrt.ops.svm import SquaredDistance
from clrt.ops.transpose import Transpose
from clrt.ops.views import Flatten, Identity, Reshape, Unsqueeze

_SIGNED = {4: DType.INT4, 8: DType.INT8}
_UNSIGNED = {4: DType.UINT4, 8: DType.UINT8}
_BY_HEAD = (0, 2, 1, 3)

Decomposition: TypeAlias = "Callable[[Node, Maker], Sequence[Value]]"


class Maker:
    """Makes the nodes that stand for one node.

    Args:
        node: What is replaced; its name is a part of the new names.
        names: Those of the graph.
        single: The constants that one node alone reads.
    """

    def __init__(self, node: Node, names: Names, single: frozenset[Value]) -> None:
        self.nodes: list[Node] = []
        self._node = node
        self._names = names
        self._single = single

    def __call__(self, op: IrOp, *inputs: Value | None) -> Value:
        """The first output of an op."""
        return self.outputs(op, *inputs)[0]

    def outputs(self, op: IrOp, *inputs: Value | None) -> list[Value]:
        """Every output of an op."""
        assert isinstance(op, Op)
        name = self._names.fresh(self._node.name, op.name)
        types = op.infer_with_data([None if v is None else v.type for v in inputs])
        values = [Value(f"{name}/{k}" if k else name, t) for k, t in enumerate(types)]
        self.nodes.append(Node(name, op, list(inputs), values, self._node.origins, "export"))
        return values

    def numbers(self, data: Any, dtype: DType = DType.INT64) -> Value:
        """A constant."""
        array = np.asarray(data, dtype.numpy)
        name = self._names.fresh(self._node.name, "constant")
        return Value(name, TensorType(dtype, array.shape, array))

    def dim(self, dim: Dim) -> Value:
        """A dim as int64[], symbolic where it is."""
        if isinstance(dim, int):
            return self.numbers(dim)
        data = np.empty((), object)
        data[()] = dim
        name = self._names.fresh(self._node.name, "dim")
        return Value(name, TensorType(DType.INT64, (), data))

    def transposed(self, value: Value) -> Value:
        """A value with its last two axes swapped; a constant of no other node is swapped now."""
        if value.numbers is not None and value in self._single:
            return self.numbers(np.ascontiguousarray(value.numbers.swapaxes(-1, -2)), value.dtype)
        rank = _rank(value)
        return self(Transpose((*range(rank - 2), rank - 1, rank - 2)), value)

    def program(self, steps: Sequence[Step], operands: Sequence[Value]) -> Value:
        """The last step of an elementwise program."""
        values = list(operands)
        for step in steps:
            if isinstance(step.op, Literal):
                values.append(self.numbers(step.op.value, step.op.dtype))
            elif isinstance(step.op, Where):
                values.append(self.choice(*(values[a] for a in step.args)))
            else:
                values.append(self(step.op, *(values[a] for a in step.args)))
        return values[-1]

    def choice(self, condition: Value, x: Value, y: Value) -> Value:
        """Where, which ONNX Runtime does not have for bool."""
        if x.dtype is not DType.BOOL:
            return self(Where(), condition, x, y)
        others = self(And(), self(Not(), condition), y)
        return self(Or(), self(And(), condition, x), others)

    def columns(self, value: Value, start: int, width: int) -> Value:
        """Some places of the last axis; the value itself where these are all."""
        if not start and value.shape is not None and same(value.shape[-1], width):
            return value
        return self(Slice(), value, *(self.numbers([n]) for n in (start, start + width, -1)))


def _rank(value: Value) -> int:
    if value.shape is None:
        raise UnsupportedError(f"'{value.name}' has no known rank, which its export needs.")
    return len(value.shape)


def _fused(node: Node, make: Maker) -> Sequence[Value]:
    assert isinstance(node.op, Fused)
    return [make.program(node.op.steps, [v for v in node.inputs if v is not None])]


def _where(node: Node, make: Maker) -> Sequence[Value]:
    return [make.choice(node.arg(0), node.arg(1), node.arg(2))]


def _literal(node: Node, make: Maker) -> Sequence[Value]:
    assert isinstance(node.op, Literal)
    return [make(Identity(), make.numbers(node.op.value, node.op.dtype))]


def _fused_matmul(node: Node, make: Maker) -> Sequence[Value]:
    op, a, b = node.op, node.arg(0), node.arg(1)
    assert isinstance(op, FusedMatMul)
    a = make.transposed(a) if op.trans_a else a
    b = make.transposed(b) if op.trans_b else b
    if b.dtype is not a.dtype:
        b = make(Cast(a.dtype), b)
    extras = [v for v in node.inputs[2:] if v is not None]
    return [make.program(op.steps, [make(MatMul(), a, b), *extras])]


def _fused_attention(node: Node, make: Maker) -> Sequence[Value]:
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
    bias = _bias(node, q, k, make)
    if bias is not None:
        scores = make(Add(), scores, bias)
    result = make(MatMul(), make(Softmax(-1), scores), values)
    if op.nan_to_zero and bias is not None:
        # Of the mask alone, which all heads and perhaps all layers share.
        top = make(ReduceMax(keepdims=True), bias, make.numbers([-1]))
        hidden = make(Equal(), top, make.numbers(-np.inf, q.dtype))
        result = make(Where(), hidden, make.numbers(0, q.dtype), result)
    merged = make(Transpose((0, 2, 1, 3)), result)
    width = op.num_heads * op.v_head_size
    return [make(Reshape(), merged, make.numbers([0, 0, width]))]


def _fused_rotary(node: Node, make: Maker) -> Sequence[Value]:
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


def _bias(node: Node, q: Value, k: Value, make: Maker) -> Value | None:
    """What is added to the scores: the mask, and -inf for keys behind their query."""
    op, mask = node.op, node.input(3)
    assert isinstance(op, FusedAttention)
    if mask is not None and mask.dtype is DType.BOOL:
        mask = _additive(mask, q.dtype, make)
    if not op.is_causal:
        return mask
    causal = _additive(_causal(q, k, make), q.dtype, make)
    return causal if mask is None else make(Add(), mask, causal)


def _projections(node: Node, make: Maker) -> tuple[Value, Value, Value]:
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
        q, k, v = make.outputs(Split(-1), values[0], make.numbers(widths))
        return q, k, v
    parts = []
    for value, start, width in zip(values, starts, widths, strict=True):
        parts.append(make.columns(value, start, width) if value.type.rank == 3 else value)
    return parts[0], parts[1], parts[2]


def _width(value: Value) -> Dim | None:
    return None if value.shape is None else value.shape[-1]


def _heads(x: Value, count: int, size: int, perm: tuple[int, ...], make: Maker) -> Value:
    """Heads side by side, split and then transposed by `perm`; or heads apart, brought to that."""
    if x.type.rank == 4:
        return x if perm == _BY_HEAD else make(Transpose((0, 1, 3, 2)), x)
    split = make(Reshape(), x, make.numbers([0, 0, count, size]))
    return make(Transpose(perm), split)


def _additive(mask: Value, dtype: DType, make: Maker) -> Value:
    """0 where the mask holds, -inf elsewhere."""
    return make(Where(), mask, make.numbers(0, dtype), make.numbers(-np.inf, dtype))


def _causal(q: Value, k: Value, make: Maker) -> Value:
    """bool[Sq, Sk], true where the key is not behind the query."""
    if q.shape is None or k.shape is None:
        raise UnsupportedError(f"'{q.name}' has no known rank, which its export needs.")
    zero, one = make.numbers(0), make.numbers(1)
    rows, columns = (make(Range(), zero, make.dim(x.shape[-2]), one) for x in (q, k) if x.shape)
    return make(GreaterOrEqual(), make(Unsqueeze(), rows, make.numbers([1])), columns)


def _flat_softmax(node: Node, make: Maker) -> Sequence[Value]:
    op, x = node.op, node.arg(0)
    assert isinstance(op, (Softmax, LogSoftmax))
    flat = make(type(op)(-1), make(Flatten(op.axis), x))
    return [make(Reshape(), flat, make(Shape_(), x))]


def _lookup(node: Node, make: Maker) -> Sequence[Value]:
    x, keys, values, default = (node.arg(i) for i in range(4))
    if keys.shape is None:
        raise UnsupportedError(f"{node!r} has keys of no known rank, which its export needs.")
    if same(keys.shape[0], 0):
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


def _squared_distance(node: Node, make: Maker) -> Sequence[Value]:
    rows = make(Unsqueeze(), node.arg(0), make.numbers([1]))
    apart = make(Sub(), rows, node.arg(1))
    return [make(ReduceSum(keepdims=False), make(Mul(), apart, apart), make.numbers([2]))]


def _is_dequantized(node: Node, op: MatMulNBits) -> bool:
    """Whether DequantizeLinear says the same: its zero points are levels, which a pass that reads
    it (`fuse_dequantized_matmul`) gives as floats."""
    zero = node.input(3)
    if zero is None or zero.numbers is None or zero.dtype is DType.UINT8 or op.bits not in _SIGNED:
        return False
    points = op.zero_points(zero.numbers)
    return bool(np.all((points == np.rint(points)) & (points >= 0) & (points < 1 << op.bits)))


def _dequantized_matmul(node: Node, make: Maker) -> Sequence[Value]:
    """As it was before the pass: ONNX Runtime then chooses its kernel as for the original."""
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
    return [_finished(node, make(MatMul(), a, make(rule, levels, *parameters)), make)]


def _stepped_matmul(node: Node, make: Maker) -> Sequence[Value]:
    assert isinstance(node.op, MatMulNBits)
    plain = make(replace(node.op, steps=()), *node.inputs[:5])
    return [_finished(node, plain, make)]


def _finished(node: Node, product: Value, make: Maker) -> Value:
    """A product with the bias and the steps of its node."""
    assert isinstance(node.op, MatMulNBits)
    return make.program(node.op.program(node.input_types), [product, *node.op.extras(node)])


def _has_zero_points(node: Node) -> bool:
    """Whether the weights of a convolution may have more than one zero point."""
    zeros = node.input(3)
    return zeros is not None and zeros.shape != () and not same_shape(zeros.shape, (1,))


def _conv_integer(node: Node, make: Maker) -> Sequence[Value]:
    """ONNX Runtime's has one zero point: where they differ, they are weights of their own."""
    zeros, weights = node.arg(3), node.arg(1)
    if zeros.numbers is not None and len(set(zeros.numbers.flat)) == 1:
        one = make.numbers(zeros.numbers.flat[0], zeros.dtype)
        return [make(node.op, *node.inputs[:3], one)]
    column = make(Reshape(), zeros, make.numbers([-1] + [1] * (_rank(weights) - 1)))
    every = make(Expand(), column, make(Shape_(), weights))
    sums = (make(node.op, node.arg(0), w, node.input(2)) for w in (weights, every))
    return [make(Sub(), *sums)]


def _scaled_by_channel(node: Node, make: Maker) -> Sequence[Value]:
    """ONNX has deprecated the form with a scale per group."""
    op, (x, *affine) = node.op, [v for v in node.inputs if v is not None]
    assert isinstance(op, GroupNormalization)
    channels = None if x.shape is None else x.shape[1]
    if not isinstance(channels, int):
        raise UnsupportedError(f"'{x.name}' has no known channels, which its export needs.")
    wide, flat = make.numbers([1, channels // op.num_groups]), make.numbers([-1])
    columns = (make(Unsqueeze(), v, make.numbers([1])) for v in affine)
    repeated = [make(Reshape(), make(Expand(), v, wide), flat) for v in columns]
    return [make(replace(op, per_group=False), x, *repeated)]


TABLE: dict[type[Op], Decomposition] = {
    Fused: _fused,
    Literal: _literal,
    FusedMatMul: _fused_matmul,
    FusedAttention: _fused_attention,
    FusedRotary: _fused_rotary,
    Lookup: _lookup,
    SquaredDistance: _squared_distance,
    DecisionTrees: trees,
}


def _decomposition(node: Node) -> Decomposition | None:
    op = node.op
    if isinstance(op, MatMulNBits):
        if _is_dequantized(node, op):
            return _dequantized_matmul
        return _stepped_matmul if op.steps else None
    if isinstance(op, (Softmax, LogSoftmax)) and op.flatten:
        return _flat_softmax
    if isinstance(op, Where):
        return _where if node.output.dtype is DType.BOOL else None
    if isinstance(op, ConvInteger) and _has_zero_points(node):
        return _conv_integer
    if isinstance(op, GroupNormalization):
        return _scaled_by_channel if op.per_group else None
    return TABLE.get(type(op)) if isinstance(op, Op) else None


def check_decomposable(graph: Graph) -> None:
    """Refuses a graph with ops of clrt's own that have no form in ONNX.

    Raises:
        UnsupportedError: There are such; it names all of them.
    """
    nodes = [n for g in all_graphs(graph) for n in g.nodes]
    bad = [repr(n) for n in nodes if n.op.domain == "clrt" and _decomposition(n) is None]
    if bad:
        raise UnsupportedError(
            f"ONNX has no form for {', '.join(bad)}; keep the original model for ONNX Runtime, or "
            "add a decomposition in clrt/exporter/decompositions.py.",
            bad,
        )


def decompose(graph: Graph) -> Graph:
    """A copy of a graph without ops of clrt's own; graphs inside its nodes stay as they are."""
    copy = graph.copy()
    single = frozenset(v for v, users in copy.users().items() if v.is_constant and len(users) == 1)
    names = Names(copy.names())
    nodes: list[Node] = []
    for node in copy.nodes:
        rule = _decomposition(node)
        if rule is None:
            nodes.append(node)
            continue
        make = Maker(node, names, single)
        results = [
            value if value.producer in make.nodes else make(Identity(), value)
            for value in rule(node, make)
        ]
        _take_over(node, dict(zip(results, node.outputs, strict=True)), make.nodes)
        nodes += make.nodes
    copy.nodes = nodes
    return copy


def _take_over(node: Node, results: dict[Value, Value], nodes: Sequence[Node]) -> None:
    """Lets new nodes compute the outputs of the one that they stand for."""
    nodes[-1].name = node.name
    for made in nodes:
        made.inputs = [None if v is None else results.get(v, v) for v in made.inputs]
        made.outputs = [results.get(v, v) for v in made.outputs]
        for output in made.outputs:
            output.producer = made
