"""Hoists computations on rows of a tensor out of a loop: one computation covers all rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.views import Reshape
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.fused import Fused

# Maximum size in bytes of a tensor of hoisted results, which stays allocated during the loop.
_MAX_BYTES = 16 << 20


class Hoisting:
    """Hoists nodes that read one row of a tensor per iteration out of a loop body.

    Hoisted nodes are computed for all rows at once, before the loop: a product then reads its
    weights once, and an elementwise node needs one launch.

    Attributes:
        added: Tensors computed before the loop, in the order of the inputs that were appended to
            the body for them.
    """

    def __init__(
        self,
        body: Graph,
        invariant: Mapping[Value, Value],
        counters: Collection[Value],
        iterations: int,
        builder: Builder,
    ) -> None:
        """Moves all nodes out of the loop that can be computed before it.

        Args:
            body: Loop body; modified.
            invariant: Tensor outside of the loop by body input, for inputs that are the same tensor
                in all iterations.
            counters: Body inputs that are known numbers in each iteration: possible row indices.
            iterations: Number of iterations; a tensor with more than twice as many rows is not
                used, because most results would be unused.
            builder: Adds the nodes in front of the loop.
        """
        self.added: list[Value] = []
        self._body, self._invariant, self._counters, self._iterations = (
            body,
            invariant,
            counters,
            iterations,
        )
        self._builder, self._users = builder, body.users()
        # Body value -> tensor of which it is a row, and the row index.
        self._rows: dict[Value, tuple[Value, Value]] = {}
        body.nodes = [replacement for node in body.nodes for replacement in self._replacement(node)]
        body.remove_dead()

    def _replacement(self, node: Node) -> list[Node]:
        """Hoists a node if possible, and returns the nodes that replace it in the loop body.

        Returns the node itself if it is not hoisted.
        """
        op = node.op
        if isinstance(op, Gather) and op.axis == 0:
            whole, number = self._invariant.get(node.arg(0)), node.arg(1)
            counted = number in self._counters and number.shape == ()
            if whole is not None and counted and whole.dims[0] <= 2 * self._iterations:
                self._rows[node.output] = whole, number
        elif isinstance(op, (Pointwise, Fused)):
            return self._without_elementwise(node)
        elif isinstance(op, FusedMatMul):
            return self._without_product(node, op)
        return [node]

    def _row(self, value: Value, whole: Value, number: Value) -> Node:
        """Returns a node for the loop body that gathers one row of a hoisted tensor.

        Args:
            value: Output of the new node: the row.
            whole: Hoisted tensor, which becomes a new input of the body.
            number: Value in the body: index of the row.
        """
        formal = Value(f"{value.name}.rows", whole.type)
        self._body.inputs.append(formal)
        self.added.append(whole)
        self._rows[value] = whole, number
        return Node(f"{value.name}.row", Gather(), [formal, number], [value])

    def _without_elementwise(self, node: Node) -> list[Node]:
        """Hoists an elementwise node whose inputs are rows of the same index and scalar constants.

        Returns:
            A node that gathers the row of the hoisted result; `node` itself if it cannot be
            hoisted.
        """
        values = [v for v in node.inputs if v is not None]
        rows = [self._rows[v] for v in values if v in self._rows]
        scalars = [v for v in values if v not in self._rows]
        indices = {(number, len(whole.dims)) for whole, number in rows}
        if len(indices) != 1 or len(values) < len(node.inputs):
            return [node]
        if not all(v.is_constant and v.has_numbers and v.type.static_shape == () for v in scalars):
            return [node]
        inputs = [self._rows[v][0] if v in self._rows else v for v in values]
        whole = self._builder.add(node.op, *inputs)
        if whole.nbytes > _MAX_BYTES:
            return [node]
        return [self._row(node.output, whole, rows[0][1])]

    def _without_product(self, node: Node, op: FusedMatMul) -> list[Node]:
        """Hoists the product of a row and a weight; the epilogue of the product stays in the loop.

        If the epilogue reads another product, it becomes the epilogue of that product if possible.

        Returns:
            Nodes that gather the row of the hoisted product and apply the epilogue; `node` itself
            if it cannot be hoisted.
        """
        a, b = node.arg(0), node.arg(1)
        if a not in self._rows or op.trans_a or not b.is_constant or len(b.dims) != 2:
            return [node]
        whole, number = self._rows[a]
        dims = (*whole.dims[:-1], b.dims[0] if op.trans_b else b.dims[1])
        floats = all(v.dtype is DType.FLOAT32 for v in (whole, *node.inputs, *node.outputs) if v)
        if len(dims) != 3 or not floats or prod(dims) * DType.FLOAT32.itemsize > _MAX_BYTES:
            return [node]
        builder = self._builder
        flat = builder.add(Reshape(), whole, builder.ints(-1, whole.dims[-1]))
        product = builder.add(replace(op, steps=()), flat, b)
        rows = builder.add(Reshape(), product, builder.ints(*dims))
        if not op.steps:
            return [self._row(node.output, rows, number)]
        row = Value(f"{node.name}.product", TensorType(DType.FLOAT32, dims[1:]))
        return [self._row(row, rows, number), self._with_epilogue(node, op, row)]

    def _with_epilogue(self, node: Node, op: FusedMatMul, row: Value) -> Node:
        """Returns a node for the loop body that applies the epilogue of a hoisted product.

        Args:
            node: Node of the original product, with epilogue.
            op: The node's op.
            row: Row of the hoisted product, without epilogue.
        """
        extras = node.inputs[2:]
        for k, value in enumerate(extras):
            producer = None if value is None else value.producer
            if (
                value is None
                or producer is None
                or not isinstance(producer.op, FusedMatMul)
                or producer.op.steps
            ):
                continue
            alone = len(self._users[producer.output]) == 1 and extras.count(value) == 1
            if alone and value not in self._body.outputs and value.shape == row.shape:
                steps = tuple(replace(s, args=_swap_operands(s.args, 1 + k)) for s in op.steps)
                inputs = [*producer.inputs, *extras[:k], row, *extras[k + 1 :]]
                return Node(node.name, replace(producer.op, steps=steps), inputs, node.outputs)
        return Node(node.name, Fused(op.steps), [row, *extras], node.outputs)


def _swap_operands(args: tuple[int, ...], place: int) -> tuple[int, ...]:
    """Returns the operand indices of an elementwise step, with 0 and `place` exchanged."""
    return tuple({0: place, place: 0}.get(a, a) for a in args)
