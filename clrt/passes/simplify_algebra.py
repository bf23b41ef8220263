"""Algebraic simplification of single elementwise ops."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import ml_dtypes
import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType, converts_safely
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Abs, Equal, Mul, Reciprocal, Sqrt, Where
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import (
    class_name,
    keeps_shape,
    never_negative,
    op_name,
    produced_by,
    scalar,
    with_scalar,
)

# Magnitudes of factors that are merged: intermediate products then did not overflow either.
_FACTOR_RANGE = (1e-6, 1e6)
Rule = Callable[[GraphView, Node, Builder], "Value | None"]


class SimplifyAlgebra(Pass):
    """Elementwise node -> a cheaper node of nearly the same result.

    x / c -> x * (1 / c), x ** 2 -> x * x, x ** 0.5 -> sqrt(x), x ** -1 -> 1 / x,
    (x * c) * d -> x * (c * d), not not x -> x, -(-x) -> x, Cast after a lossless Cast -> one Cast.
    The sqrt is corrected for -infinity and -0, unless x is known to be neither.

    Numerics: x * (1 / c) equals x / c if c is a power of two; otherwise its error is at most one
    ulp larger.
    """

    name = "simplify_algebra"

    def may_match(self, op: type[IrOp]) -> bool:
        return class_name(op) in _RULES

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        match = Match(view, node)
        build = match.builder(self.name)
        value = _RULES[op_name(node)](view, node, build)
        if value is None or not keeps_shape(value, node.output):
            return None
        match.payload = (build, value)
        return match

    def rewrite(self, match: Match) -> Patch:
        build, value = match.payload
        assert isinstance(build, Builder)
        return build.patch({match.root.output: value})


def _div(view: GraphView, node: Node, build: Builder) -> Value | None:
    """Rule: division by a constant -> product with its inverse, if that is normal and finite."""
    x, divisor = node.arg(0), node.arg(1)
    if not x.dtype.is_float or not divisor.is_constant or divisor.numbers is None:
        return None
    # Dividing one number costs nothing, and it may be a quantization scale, where one ulp matters.
    if x.type.static_shape is not None and prod(x.type.static_shape) == 1:
        return None
    numbers = divisor.numbers
    if numbers.size == 0 or numbers.size > 1 << 16 or not np.all(numbers):
        return None
    inverse = np.asarray(1.0 / numbers.astype(np.float64)).astype(numbers.dtype)
    least = ml_dtypes.finfo(inverse.dtype).tiny
    if not np.all(np.isfinite(inverse)) or not np.all(np.abs(inverse) >= least):
        return None
    return build.add(Mul(), x, build.constant(inverse))


def _pow(view: GraphView, node: Node, build: Builder) -> Value | None:
    """Rule: power of 2, 0.5 or -1 -> Mul, square root or Reciprocal; None for other exponents."""
    x, exponent = node.arg(0), scalar(node.arg(1))
    if exponent == 2:
        return build.add(Mul(), x, x)
    if not x.dtype.is_float:
        return None
    if exponent == 0.5:
        return _root(x, build)
    return build.add(Reciprocal(), x) if exponent == -1 else None


def _root(x: Value, build: Builder) -> Value:
    """Builds x ** 0.5, which unlike sqrt(x) is infinity for -infinity and 0 for -0."""
    root = build.add(Sqrt(), x)
    if never_negative(x):
        return root
    infinity = np.asarray(np.inf, x.dtype.numpy)
    lowest = build.add(Equal(), x, build.constant(-infinity))
    return build.add(Where(), lowest, build.constant(infinity), build.add(Abs(), root))


def _mul(view: GraphView, node: Node, build: Builder) -> Value | None:
    """Rule: (x * c) * d with scalars c and d -> x * (c * d); None if the rule does not apply."""
    outer = with_scalar(node, "Mul")
    inner = with_scalar(outer[0].producer, "Mul") if outer else None
    if outer is None or inner is None or not node.output.dtype.is_float:
        return None
    (middle, c), (x, d) = outer, inner
    if view.only_user(middle) is not node or not (_is_moderate(c) and _is_moderate(d)):
        return None
    factor, info = float(c) * float(d), ml_dtypes.finfo(x.dtype.numpy)
    if not float(info.tiny) <= abs(factor) <= float(info.max):
        return None
    return build.add(Mul(), x, build.constant(np.asarray(factor, x.dtype.numpy)))


def _is_moderate(number: float) -> bool:
    """Whether the magnitude of a factor is from 1e-6 to 1e6.

    Only two factors in this range are merged into one.
    """
    return _FACTOR_RANGE[0] <= abs(number) <= _FACTOR_RANGE[1]


def _twice(name: str) -> Rule:
    """Returns the rule f(f(x)) -> x, where f is the op `name`, such as Not."""

    def rule(view: GraphView, node: Node, build: Builder) -> Value | None:
        inner = produced_by(node.arg(0), name)
        return None if inner is None else inner.arg(0)

    return rule


def _cast(view: GraphView, node: Node, build: Builder) -> Value | None:
    inner = produced_by(node.arg(0), "Cast")
    if inner is None or not is_lossless(inner.arg(0).dtype, inner.output.dtype):
        return None
    return build.add(node.op_as(Cast), inner.arg(0))


def is_lossless(source: DType, target: DType) -> bool:
    """Whether the target dtype represents every number of the source dtype exactly."""
    wide = source in (DType.INT64, DType.UINT64) and target.is_float
    return not wide and converts_safely(source.numpy, target.numpy)


_RULES: dict[str, Rule] = {
    "Div": _div,
    "Pow": _pow,
    "Mul": _mul,
    "Not": _twice("Not"),
    "Neg": _twice("Neg"),
    "Cast": _cast,
}
