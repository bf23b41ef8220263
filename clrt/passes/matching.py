"""Predicates and matchers of values and nodes, shared by passes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.ir.dims import is_unknown, provably_equal, same_shape
from clrt.ir.graph import Node, Value
from clrt.ir.op import IrOp
from clrt.ir.pattern import Pattern, any_value, through
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.fused import Fused

# Ops that copy elements without computing.
_MOVERS = ("Expand", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Identity")


def op_name(node: Node | None) -> str:
    """Returns a node's op name: "Name" of ONNX, "domain.Name" of other domains; "" for None."""
    return "" if node is None else class_name(type(node.op))


def class_name(op: type[IrOp]) -> str:
    """Returns the name of an op class: "Name" of ONNX's domain, "domain.Name" of other domains."""
    return f"{op.domain}.{op.name}" if op.domain else op.name


def produced_by(value: Value | None, *names: str) -> Node | None:
    """Returns the node that computes a value if its op has one of the names, else None.

    Args:
        value: The value; None has no node.
        names: Op names as `op_name` returns them.
    """
    node = None if value is None else value.producer
    return node if node is not None and op_name(node) in names else None


def scalar(value: Value | None) -> float | None:
    """Returns the element of a one-element constant of any rank; None for other values."""
    numbers = None if value is None or not value.is_constant else value.numbers
    return float(numbers.reshape(-1)[0]) if numbers is not None and numbers.size == 1 else None


def is_scalar(value: Value | None, expected: float, tolerance: float = 1e-5) -> bool:
    """Whether a value is a constant of one element within a relative tolerance of `expected`."""
    number = scalar(value)
    return number is not None and abs(number - expected) <= tolerance * abs(expected)


def uniform(value: Value | None) -> float | None:
    """Returns the number that all elements of a value equal; None if they differ or are unknown."""
    for _ in range(8):
        if value is None:
            return None
        if value.is_constant:
            numbers = value.numbers
            if numbers is None or not numbers.size:
                return None
            first = numbers.item(0)
            if first != numbers.item(-1):  # as most weights do
                return None
            if numbers.size > 1 and not np.all(numbers == numbers.flat[0]):
                return None
            return float(first)
        node = value.producer
        if op_name(node) == "Where" and node is not None:
            condition = uniform(node.arg(0))
            if condition is None:
                return None
            value = node.arg(1 if condition else 2)
        elif op_name(node) in _MOVERS:
            assert node is not None
            value = node.arg(0)
        else:
            return None
    return None


def never_negative(value: Value, depth: int = 8) -> bool:
    """Whether provably no element of a float value is negative or -0.

    Args:
        value: The value.
        depth: Maximum number of producing nodes to look through.
    """
    if value.is_constant:
        numbers = value.numbers
        return numbers is not None and not bool(np.signbit(numbers.astype(np.float64)).any())
    node = value.producer
    name = op_name(node)
    if node is None or not depth:
        return False
    if name == "Mul" and node.arg(0) is node.arg(1):
        return True
    if name == "Pow" and scalar(node.arg(1)) == 2:
        return True
    if name in (*_MOVERS, "ReduceMean", "ReduceSum", "ReduceMax"):
        return never_negative(node.arg(0), depth - 1)
    if name in ("Add", "Sum", "Mul", "Div", "Max"):
        return all(v is not None and never_negative(v, depth - 1) for v in node.inputs)
    return name in ("Abs", "Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare")


def operand_orders(node: Node) -> Iterator[tuple[Value, Value]]:
    """Yields (a, b) and (b, a) for a node of inputs a and b; nothing for other input counts."""
    if len(node.inputs) == 2:
        a, b = node.arg(0), node.arg(1)
        yield a, b
        yield b, a


def with_scalar(node: Node | None, name: str) -> tuple[Value, float] | None:
    """Matches the commutative op `name` of x and a one-element constant.

    Returns:
        (x, number of the constant); None for other nodes, or if the output has another shape than
        x.
    """
    if node is None or op_name(node) != name:
        return None
    for x, constant in operand_orders(node):
        number = scalar(constant)
        if number is not None and keeps_shape(x, node.output):
            return x, number
    return None


def scaled(node: Node | None) -> tuple[Value, float] | None:
    """Matches x * c, c * x or x / c with a one-element constant c.

    Returns:
        (x, factor c or 1 / c). None for other nodes, for x / 0, or if the output has another shape
        than x.
    """
    if node is None:
        return None
    if op_name(node) == "Div":
        number = scalar(node.arg(1))
        if number and keeps_shape(node.arg(0), node.output):
            return node.arg(0), 1.0 / number
        return None
    return with_scalar(node, "Mul")


def equals(number: float) -> Pattern:
    """Matches a one-element constant of any rank that equals a number."""
    return any_value(test=lambda v: scalar(v) == number)


def multiple_of(x: Pattern, name: str) -> Pattern:
    """Matches x * c, c * x or x / c with a one-element constant c.

    Args:
        x: Pattern of x.
        name: Name under which the product is captured. `scaled` of its node returns the factor.
    """
    return through(lambda n: pair[0] if (pair := scaled(n)) else None, x, name)


def keeps_shape(x: Value, y: Value) -> bool:
    """Whether x and y provably have the same shape; false if a shape is unknown."""
    return same_shape(x.shape, y.shape)


def has_known_shape(value: Value) -> bool:
    """Whether every dim of a value is a number or an expression of dims of graph inputs."""
    return value.shape is not None and not any(map(is_unknown, value.shape))


def is_elementwise(node: Node | None) -> bool:
    """Whether a node is an elementwise op or Fused, with one output and no value on the host."""
    if node is None or not isinstance(node.op, (Pointwise, Fused)) or len(node.outputs) != 1:
        return False
    for value in (*node.inputs, node.outputs[0]):
        if value is not None and value.type.on_host:
            return False
    return True


def moves_ones(node: Node) -> bool:
    """Whether a node is a Transpose that moves at most axes of size 1, hence no elements."""
    return isinstance(node.op, Transpose) and node.op.is_view(node.input_types)


def has_one_element(value: Value) -> bool:
    """Whether every dim of a value is provably 1; true for scalars."""
    for dim in value.type.shape or ():
        if not provably_equal(dim, 1):
            return False
    return value.type.shape is not None


def int_attribute(op: IrOp, name: str, default: int) -> int:
    """Returns the integer attribute `name` of an op; `default` if the op has no such attribute."""
    return int(getattr(op, name, default))
