"""Concatenates the heads of Q, K and V of a layer, as RotateAndCache reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clrt.ir.dims import product, provably_equal, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.models.decoders.io_names import TOKENS
from clrt.models.decoders.paging.cached_attention import LayerAttention
from clrt.ops.attention.fused_rotary import FusedRotary
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.matmul.matmul_nbits import MatMulNBits
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Reshape, View
from clrt.ops.op_builder import OpBuilder
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Add
from clrt.passes.attention_matching import Heads, find_heads
from clrt.util.fast_dataclass import dataclass

# Permutation that swaps the axes of tokens and heads.
_BY_TOKEN = (0, 2, 1, 3)


@dataclass(frozen=True, eq=False)
class _Columns:
    """A range of columns of a value.

    Attributes:
        source: The value, `[1, tokens, width]`.
        first: Index of the first column.
        count: Number of columns.
    """

    source: Value
    first: int
    count: int

    @property
    def is_whole(self) -> bool:
        """Whether the range covers all columns."""
        shape = self.source.shape
        return shape is not None and provably_equal(shape[-1], self.count)


class HeadJoiner:
    """Concatenates the heads of Q, K and V of a layer with as few copies as possible.

    If Q, K and V are three products of the same value, their weights are concatenated instead.

    Args:
        graph: The original graph.
        build: Builder of the rewritten graph.
    """

    def __init__(self, graph: Graph, build: OpBuilder) -> None:
        self._build = build
        self._users = graph.users()
        self._outputs = set(graph.outputs)
        self._halves: dict[Value, Value | None] = {}

    def join(self, layer: LayerAttention) -> tuple[Value, list[Value | None]]:
        """Returns the heads of Q, K and V of a layer side by side.

        Returns:
            The heads, float32 `[tokens, width]`; and [cosines, sines] of the rotary embedding that
            must still be applied to Q and K, each `[tokens, size / 2]`. [None, None] if the layer
            has no rotary embedding, or nodes of the file apply it.
        """
        op, (kv_heads, size) = layer.op, layer.geometry
        q = self._columns(layer.node.arg(0), op.q_offset, op.num_heads * size)
        k = self._columns(layer.key, 0, kv_heads * size)
        v = self._columns(layer.value, 0, kv_heads * size)
        tables: list[Value | None] = [None, None]
        rotaries = [_rotary_of(part) for part in (q, k)]
        if rotaries[0] is not None and rotaries[1] is not None:
            shared = self._tables(rotaries[0], rotaries[1])
            if shared is not None:
                tables = [*shared]
                q, k = (
                    self._columns(rotary.arg(0), rotary.op.offset, part.count)
                    for rotary, part in zip(rotaries, (q, k), strict=True)
                    if rotary is not None and isinstance(rotary.op, FusedRotary)
                )
        return self._flat(self._concatenated([q, k, v])), tables

    def flat(self, value: Value) -> Value:
        """Reshapes `[1, tokens, width]` to `[tokens, width]` in float32."""
        return self._flat(value)

    def _flat(self, value: Value) -> Value:
        """Reshapes a value to float32 [tokens, width]."""
        shape = value.shape
        assert shape is not None
        value = self._build.reshaped(value, symbol(TOKENS), shape[-1])
        wide = value.dtype is DType.FLOAT32
        return value if wide else self._build.add(Cast(DType.FLOAT32), value)

    def _columns(self, value: Value, offset: int, count: int) -> _Columns:
        """Returns heads as columns of a value `[1, tokens, width]`.

        Args:
            value: The heads `[1, heads, tokens, size]`, which are transposed if needed; or a value
                `[1, tokens, width]` with the heads in its columns.
            offset: Index of the heads' first column, if `value` has rank 3.
            count: Number of columns: heads times elements of a head.
        """
        if value.type.rank == 3:
            return _Columns(value, offset, count)
        heads = find_heads(value, transposed=False)
        plain = isinstance(heads, Heads) and heads.scale == 1 and heads.repeat == 1
        if isinstance(heads, Heads) and plain and heads.source is not None:
            return _Columns(heads.source, heads.offset, count)
        apart = self._build.add(Transpose(_BY_TOKEN), value)
        shape = self._build.dims((1, symbol(TOKENS), count))
        return _Columns(self._build.add(Reshape(1), apart, shape), 0, count)

    def _concatenated(self, parts: Sequence[_Columns]) -> Value:
        """Returns ranges of columns side by side, by as few nodes as possible.

        If the ranges are all columns of one value, in order, this value is returned.
        """
        first, at = parts[0], 0
        for part in parts:
            if part.source is not first.source or part.first != at:
                break
            at += part.count
        else:
            if provably_equal((first.source.shape or (None,))[-1] or 0, at):
                return first.source
        return self._product(parts) or self._build.add(Concat(2), *map(self._sliced, parts))

    def _sliced(self, part: _Columns) -> Value:
        """Returns the columns in a range, as a value; adds no node if these are all columns."""
        if part.is_whole:
            return part.source
        return self._build.slice(part.source, part.first, part.first + part.count, 2)

    def _product(self, parts: Sequence[_Columns]) -> Value | None:
        """Returns a matrix product that replaces several products of one value.

        Args:
            parts: Ranges of columns: the results of the products, or of adding biases to them.

        Returns:
            The concatenated results; None if `parts` are not results of products of one value, or
            are read by other nodes, too.
        """
        sources = [part.source for part in parts if part.is_whole]
        adds = [s.producer for s in sources]
        if len(sources) < len(parts) or any(self._is_shared(s) for s in sources):
            return None
        biases = [_bias(node) for node in adds]
        bare = [s if b is None else b[0] for s, b in zip(sources, biases, strict=True)]
        nodes = [v.producer for v in bare]
        if any(self._is_shared(v) for v in bare) or len({b is None for b in biases}) > 1:
            return None
        merged = self._merged([n for n in nodes if n is not None]) if None not in nodes else None
        vectors = [b[1] for b in biases if b is not None]
        if merged is None or not vectors:
            return merged
        return self._build.add(Add(), merged, self._build.constant(np.concatenate(vectors)))

    def _merged(self, nodes: Sequence[Node]) -> Value | None:
        """Returns the output of one matrix product that replaces several products.

        Args:
            nodes: MatMul or MatMulNBits nodes, whose results are to be concatenated.

        Returns:
            The concatenated results. None if the nodes read different values or one node occurs
            twice, if a weight is not constant, or if the ops differ.
        """
        first = nodes[0]
        if any(n.input(0) is not first.arg(0) for n in nodes) or len(set(nodes)) < len(nodes):
            return None
        weights = [[None if v is None else v.numbers for v in n.inputs[1:]] for n in nodes]
        counts = {tuple(w is None for w in operands) for operands in weights}
        constant = all(v is None or v.is_constant for n in nodes for v in n.inputs[1:])
        if len(counts) > 1 or not constant:
            return None
        if all(isinstance(n.op, MatMul) for n in nodes):
            matrices = [
                operands[0]
                for operands in weights
                if operands[0] is not None and operands[0].ndim == 2
            ]
            if len(matrices) < len(nodes):
                return None
            whole = self._build.constant(np.concatenate(matrices, axis=1))
            return self._build.add(first.op, first.arg(0), whole)
        if not isinstance(first.op, MatMulNBits):
            return None
        ops = [n.op for n in nodes if isinstance(n.op, MatMulNBits)]
        if len(ops) < len(nodes) or len({replace(op, N=1) for op in ops}) > 1 or first.op.steps:
            return None
        # Concatenation joins the columns: they are the first axis of each input, or its elements'
        # order.
        joined = [
            None if operands[0] is None else self._build.constant(np.concatenate(operands))
            for operands in zip(*weights, strict=True)
        ]
        return self._build.add(replace(first.op, N=sum(op.N for op in ops)), first.arg(0), *joined)

    def _is_shared(self, value: Value) -> bool:
        """Returns whether a value is a graph output, or read by several nodes or none."""
        return value in self._outputs or len(self._users.get(value, ())) != 1

    def _tables(self, *turns: Node) -> tuple[Value, Value] | None:
        """Returns the cosines and sines of rotary embeddings that share their tables.

        Args:
            turns: FusedRotary nodes of the rotary embeddings.

        Returns:
            (cosines, sines), each `[tokens, size / 2]`; None if the nodes read different tables, or
            the first and second half of a table's rows may differ.
        """
        if any(turns[0].inputs[1:] != turn.inputs[1:] for turn in turns):
            return None
        halves = [self._half(v) for v in turns[0].inputs[1:3] if v is not None]
        if halves[0] is None or halves[1] is None:
            return None
        return halves[0], halves[1]

    def _half(self, table: Value) -> Value | None:
        """Returns the first half of each row of a rotary table, float32 `[tokens, size / 2]`.

        Returns None unless the second half is known to be equal.

        Args:
            table: Cosines or sines, `[…, size]` with a row per token.
        """
        if table not in self._halves:
            self._halves[table] = self._find_half(table)
        return self._halves[table]

    def _find_half(self, table: Value) -> Value | None:
        steps: list[Node] = []
        value = table
        while (node := value.producer) is not None:
            if isinstance(node.op, Concat):
                break
            inner = node.arg(0)
            is_view = isinstance(node.op, View) and _last(inner) == _last(value)
            if is_view or (isinstance(node.op, Pointwise) and len(node.inputs) == 1):
                steps += [] if is_view else [node]
            elif isinstance(node.op, Pointwise) and _by_number(node):
                steps.append(node)
            else:
                return None
            value = inner
        if node is None or len(node.inputs) != 2 or node.arg(0) is not node.arg(1):
            return None
        half, shape = node.arg(0), node.output.shape or ()
        width = _last(half)
        plain = provably_equal(product(shape[:-1]), symbol(TOKENS)) and node.op_as(Concat).axis in (
            -1,
            len(shape) - 1,
        )
        if width is None or not plain:
            return None
        result = self._build.reshaped(half, symbol(TOKENS), width)
        for step in reversed(steps):
            result = self._build.add(step.op, result, *step.inputs[1:])
        wide = result.dtype is DType.FLOAT32
        return result if wide else self._build.add(Cast(DType.FLOAT32), result)


def _last(value: Value) -> int | None:
    """Returns the last dim of a value; None if it is symbolic, or the shape unknown or empty."""
    dim = value.shape[-1] if value.shape else None
    return dim if isinstance(dim, int) else None


def _by_number(node: Node) -> bool:
    """Returns whether a node has two inputs, the second a constant number (rank 0 or 1)."""
    other = node.input(1)
    return (
        len(node.inputs) == 2
        and other is not None
        and other.is_constant
        and (
            other.shape is not None
            and len(other.shape) <= 1
            and provably_equal(product(other.shape), 1)
        )
    )


def _rotary_of(part: _Columns) -> Node | None:
    node = part.source.producer
    turned = node is not None and isinstance(node.op, FusedRotary)
    return node if turned and part.is_whole else None


def _bias(node: Node | None) -> tuple[Value, np.ndarray] | None:
    """Returns (x, vector) if a node adds a constant vector to x, else None."""
    if node is None or not isinstance(node.op, Add):
        return None
    for index in (0, 1):
        vector = node.arg(index)
        if vector.is_constant and vector.numbers is not None and vector.numbers.ndim == 1:
            return node.arg(1 - index), vector.numbers
    return None
