"""Graph builder for decompositions at export."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.dims import provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Names, Node, Value
from clrt.ir.op import ElementwiseInstruction
from clrt.ops.movement.transpose import Transpose
from clrt.ops.op_builder import OpBuilder
from clrt.ops.pointwise.activations import Swish
from clrt.ops.pointwise.fused import Literal
from clrt.ops.pointwise.round_to_scale import RoundToScale
from clrt.ops.pointwise.table import (
    And,
    Div,
    Greater,
    Less,
    Mul,
    Not,
    Or,
    Round,
    Sigmoid,
    Where,
)


class ExportBuilder(OpBuilder):
    """Builds the nodes that replace one node at export.

    ONNX Runtime lacks some dtypes of ONNX's ops. The methods of this class use ops and dtypes for
    which it has kernels.

    Args:
        node: Replaced node; its name prefixes the names of new nodes.
        names: Names used in the graph.
        single: Constants of the graph that only one node reads; new constants may replace them.
    """

    def __init__(self, node: Node, names: Names, single: frozenset[Value]) -> None:
        super().__init__(names, node.name, origins=node.origins, made_by="export")
        self._single = single

    def transposed(self, value: Value) -> Value:
        """Returns a value with its last two axes swapped, by a Transpose node or a new constant.

        The result is a constant if `value` is a constant that only the replaced node reads.

        Raises:
            UnsupportedError: The rank of the value is unknown.
        """
        if value.numbers is not None and value in self._single:
            return self.numbers(np.ascontiguousarray(value.numbers.swapaxes(-1, -2)), value.dtype)
        rank = rank_of(value)
        return self(Transpose((*range(rank - 2), rank - 1, rank - 2)), value)

    def program(self, steps: Sequence[ElementwiseInstruction], operands: Sequence[Value]) -> Value:
        """Adds the steps of an elementwise program as nodes; returns the program's result.

        Args:
            steps: Steps of the program, at least one.
            operands: Operands of the program.
        """
        values = list(operands)
        for step in steps:
            if isinstance(step.op, Literal):
                values.append(self.numbers(step.op.value, step.op.dtype))
            elif isinstance(step.op, Where):
                values.append(self.choice(*(values[a] for a in step.args)))
            elif isinstance(step.op, RoundToScale):
                values.append(self.on_scale(*(values[a] for a in step.args)))
            elif isinstance(step.op, Swish):
                values.append(self.swish(step.op, values[step.args[0]]))
            else:
                values.append(self(step.op, *(values[a] for a in step.args)))
        return values[-1]

    def choice(self, condition: Value, x: Value, y: Value) -> Value:
        """Returns elements of x where `condition` is true, else of y.

        The added node is a Where. ONNX Runtime's Where lacks bool, so for bool x and y the nodes
        are And, Or and Not.
        """
        if x.dtype is not DType.BOOL:
            return self(Where(), condition, x, y)
        others = self(And(), self(Not(), condition), y)
        return self(Or(), self(And(), condition, x), others)

    def on_scale(self, x: Value, scale: Value, low: Value, high: Value) -> Value:
        """Returns x rounded to multiples of `scale` (clrt's op RoundToScale).

        The result is limited by Where nodes, because Max would propagate NaN.

        Args:
            x: Floats.
            scale: Distance between adjacent multiples.
            low: Minimum of result / scale.
            high: Maximum of result / scale.
        """
        levels = self(Div(), x, scale)
        levels = self(Where(), self(Greater(), levels, low), levels, low)
        levels = self(Where(), self(Less(), levels, high), levels, high)
        return self(Mul(), self(Round(), levels), scale)

    def swish(self, op: Swish, x: Value) -> Value:
        """Returns Swish of x, as Sigmoid and Mul: ONNX Runtime has these for more dtypes.

        Args:
            op: The Swish op, for its factor alpha.
            x: Floats.
        """
        scaled = x if op.alpha == 1 else self(Mul(), x, self.numbers(op.alpha, x.dtype))
        return self(Mul(), x, self(Sigmoid(), scaled))

    def columns(self, value: Value, start: int, width: int) -> Value:
        """Returns `width` elements of the last axis of `value`, from index `start` on.

        Returns `value` itself if these are all elements.
        """
        if not start and value.shape is not None and provably_equal(value.shape[-1], width):
            return value
        return self.slice(value, start, start + width, -1)


def rank_of(value: Value) -> int:
    """Returns the rank of a value.

    Raises:
        UnsupportedError: The rank is unknown.
    """
    if value.shape is None:
        raise UnsupportedError(f"'{value.name}' has no known rank, which its export needs.")
    return len(value.shape)
