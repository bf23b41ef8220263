"""What a loop computes of the rows of a tensor, one a turn, computed of all rows before it."""

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

# Of what is computed of all rows: it lies beside what the loop keeps anyway.
_MOST_BYTES = 16 << 20


class Hoisting:
    """Moves nodes of a loop's graph in front of the loop.

    A product of all rows reads its weights once, and elementwise nodes are one launch.

    Attributes:
        added: What the inputs are that the graph has got, behind the others.
    """

    def __init__(
        self,
        body: Graph,
        given: Mapping[Value, Value],
        numbers: Collection[Value],
        turns: int,
        make: Builder,
    ) -> None:
        """
        Args:
            body: The loop's graph, which is changed.
            given: Of its inputs, what is the same tensor at each turn.
            numbers: Its inputs that are known numbers at each turn, as a counter.
            turns: How many there are: of a tensor of many more rows most were computed in vain.
            make: Takes the nodes in front of the loop.
        """
        self.added: list[Value] = []
        self._body, self._given, self._numbers, self._turns = body, given, numbers, turns
        self._make, self._users = make, body.users()
        # By value of the graph, the tensor that it is a row of, and the number of the row.
        self._rows: dict[Value, tuple[Value, Value]] = {}
        body.nodes = [left for node in body.nodes for left in self._left(node)]
        body.remove_dead()

    def _left(self, node: Node) -> list[Node]:
        """What a turn does in the place of a node."""
        op = node.op
        if isinstance(op, Gather) and op.axis == 0:
            whole, number = self._given.get(node.arg(0)), node.arg(1)
            counted = number in self._numbers and number.shape == ()
            if whole is not None and counted and whole.dims[0] <= 2 * self._turns:
                self._rows[node.output] = whole, number
        elif isinstance(op, (Pointwise, Fused)):
            return self._without_elementwise(node)
        elif isinstance(op, FusedMatMul):
            return self._without_product(node, op)
        return [node]

    def _row(self, value: Value, whole: Value, number: Value) -> Node:
        """The node that takes a value from what is computed of all rows."""
        formal = Value(f"{value.name}.rows", whole.type)
        self._body.inputs.append(formal)
        self.added.append(whole)
        self._rows[value] = whole, number
        return Node(f"{value.name}.row", Gather(), [formal, number], [value])

    def _without_elementwise(self, node: Node) -> list[Node]:
        values = [v for v in node.inputs if v is not None]
        rows = [self._rows[v] for v in values if v in self._rows]
        others = [v for v in values if v not in self._rows]
        alike = {(number, len(whole.dims)) for whole, number in rows}
        if len(alike) != 1 or len(values) < len(node.inputs):
            return [node]
        if not all(v.is_constant and v.has_numbers and v.type.static_shape == () for v in others):
            return [node]
        inputs = [self._rows[v][0] if v in self._rows else v for v in values]
        whole = self._make.add(node.op, *inputs)
        if whole.nbytes > _MOST_BYTES:
            return [node]
        return [self._row(node.output, whole, rows[0][1])]

    def _without_product(self, node: Node, op: FusedMatMul) -> list[Node]:
        """A product of rows: what is done with it stays, as the epilogue of another product where
        that is an operand.
        """
        a, b = node.arg(0), node.arg(1)
        if a not in self._rows or op.trans_a or not b.is_constant or len(b.dims) != 2:
            return [node]
        whole, number = self._rows[a]
        dims = (*whole.dims[:-1], b.dims[0] if op.trans_b else b.dims[1])
        floats = all(v.dtype is DType.FLOAT32 for v in (whole, *node.inputs, *node.outputs) if v)
        if len(dims) != 3 or not floats or prod(dims) * DType.FLOAT32.itemsize > _MOST_BYTES:
            return [node]
        make = self._make
        flat = make.add(Reshape(), whole, make.ints(-1, whole.dims[-1]))
        product = make.add(replace(op, steps=()), flat, b)
        rows = make.add(Reshape(), product, make.ints(*dims))
        if not op.steps:
            return [self._row(node.output, rows, number)]
        row = Value(f"{node.name}.product", TensorType(DType.FLOAT32, dims[1:]))
        return [self._row(row, rows, number), self._with_epilogue(node, op, row)]

    def _with_epilogue(self, node: Node, op: FusedMatMul, row: Value) -> Node:
        """What a node does with its product, of which there is a row."""
        extras = node.inputs[2:]
        for k, value in enumerate(extras):
            maker = None if value is None else value.producer
            if (
                value is None
                or maker is None
                or not isinstance(maker.op, FusedMatMul)
                or maker.op.steps
            ):
                continue
            alone = len(self._users[maker.output]) == 1 and extras.count(value) == 1
            if alone and value not in self._body.outputs and value.shape == row.shape:
                steps = tuple(replace(s, args=_swapped(s.args, 1 + k)) for s in op.steps)
                inputs = [*maker.inputs, *extras[:k], row, *extras[k + 1 :]]
                return Node(node.name, replace(maker.op, steps=steps), inputs, node.outputs)
        return Node(node.name, Fused(op.steps), [row, *extras], node.outputs)


def _swapped(args: tuple[int, ...], place: int) -> tuple[int, ...]:
    """Operands with those at 0 and at a place in each other's."""
    return tuple({0: place, place: 0}.get(a, a) for a in args)
