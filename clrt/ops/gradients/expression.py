"""Arithmetic on values by Python's operators, for derivatives of elementwise ops."""

from __future__ import annotations

from typing import Any, Union

from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.op_builder import OpBuilder

Operand = Union["Expression", float]


class Expression:
    """A value in a formula; operators and methods add nodes.

    Numbers among the operands become constants of the value's dtype.

    Attributes:
        value: The value.

    Args:
        build: Builder of the nodes.
        value: The value.
    """

    def __init__(self, build: OpBuilder, value: Value) -> None:
        self._build = build
        self.value = value

    def apply(self, op: str, *operands: Operand, **attributes: Any) -> Expression:
        """Returns the result of an ONNX op on this value and further operands."""
        return self._node(op, self, *operands, **attributes)

    def where(self, condition: Expression, otherwise: Operand = 0) -> Expression:
        """Returns this value where the condition is true, elsewhere `otherwise`."""
        return self._node("Where", condition, self, otherwise)

    def constant(self, number: float) -> Expression:
        """Returns a scalar constant of the value's dtype."""
        return Expression(self._build, self._build.numbers(number, self.value.dtype))

    def cast_like(self, other: Expression) -> Expression:
        """Returns the value in the dtype of another."""
        return Expression(self._build, self._build.cast(self.value, other.value.dtype))

    def widened(self) -> Expression:
        """Returns the value as float32 if its dtype is narrower, so that squares and sums fit."""
        if self.value.dtype.itemsize >= DType.FLOAT32.itemsize:
            return self
        return Expression(self._build, self._build.cast(self.value, DType.FLOAT32))

    def _node(self, op: str, *operands: Operand, **attributes: Any) -> Expression:
        values = [(o if isinstance(o, Expression) else self.constant(o)).value for o in operands]
        return Expression(self._build, self._build(op, *values, **attributes))

    def __add__(self, other: Operand) -> Expression:
        return self._node("Add", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return self._node("Add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return self._node("Sub", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return self._node("Sub", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return self._node("Mul", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return self._node("Mul", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return self._node("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return self._node("Div", other, self)

    def __neg__(self) -> Expression:
        return self._node("Neg", self)

    def __lt__(self, other: Operand) -> Expression:
        return self._node("Less", self, other)

    def __le__(self, other: Operand) -> Expression:
        return self._node("LessOrEqual", self, other)

    def __gt__(self, other: Operand) -> Expression:
        return self._node("Greater", self, other)

    def __ge__(self, other: Operand) -> Expression:
        return self._node("GreaterOrEqual", self, other)

    def equals(self, other: Operand) -> Expression:
        """Returns whether elements are equal, as bools."""
        return self._node("Equal", self, other)

    def __and__(self, other: Expression) -> Expression:
        return self._node("And", self, other)

    def __invert__(self) -> Expression:
        return self._node("Not", self)
