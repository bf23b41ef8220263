"""The Reduce* ops, each with OpenCL C expressions and a NumPy function."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from clrt.ir.cl_code import Code, render_define
from clrt.ir.dim_operations import maximum, minimum
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.base import Accuracy
from clrt.ops.gradients.expression import Expression
from clrt.ops.reduce.reduction import Reduce, ReducedGroup
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits


@register
class ReduceSum(Reduce):
    """Σ x. Source: ONNX ReduceSum, opset 1 to 13."""

    host_traits = HostTraits(evaluates_dims=True)

    def derivative(self, x: Expression, y: Expression, group: ReducedGroup) -> Any:
        return 1

    def evaluate(self, x: Array, axes: tuple[int, ...]) -> Any:
        return np.sum(x, axis=axes)


@register
class ReduceMean(Reduce):
    """Σ x / n for n elements; integers are truncated, and 0 if n is 0.

    Source: ONNX ReduceMean, opset 1 to 18.
    """

    finish = Code("((a) / (n))")

    def derivative(self, x: Expression, y: Expression, group: ReducedGroup) -> Any:
        return group.share

    def evaluate(self, x: Array, axes: tuple[int, ...]) -> Any:
        if x.size == 0:  # np.mean would warn
            return np.full(np.sum(x, axis=axes).shape, np.nan if x.dtype.kind == "f" else 0)
        return np.mean(x, axis=axes)


@register
class ReduceProd(Reduce):
    """Π x. Source: ONNX ReduceProd, opset 1 to 18."""

    init = Code("1")
    accumulate, join = Code("(a * x)"), Code("(a * b)")
    host_traits = HostTraits(evaluates_dims=True)

    def derivative(self, x: Expression, y: Expression, group: ReducedGroup) -> Any:
        # The product of the other elements: 0 if one of these is 0.
        zero = x.equals(0)
        is_zero = x.constant(1).where(zero)
        nonzero = x.constant(1).where(zero, x)
        return (group.product(nonzero) / nonzero).where(group.total(is_zero).equals(is_zero))

    def evaluate(self, x: Array, axes: tuple[int, ...]) -> Any:
        return np.prod(x, axis=axes)


def integer_bound(dtype: DType, low: bool) -> Code:
    """Returns the lowest (`low`) or highest value of an integer dtype as an OpenCL C expression.

    The lowest one is written as a sum, since C has no literal for it.
    """
    if dtype is DType.BOOL:
        return render_define(not low)
    limits = np.iinfo(dtype.value)
    number = int(limits.min if low else limits.max)
    template = Code("({}{} - 1)") if number < 0 else Code("{}{}")
    suffix = Code("UL") if number >= 2**63 else Code("L") if abs(number) >= 2**31 else Code("")
    return template.substitute(number + (number < 0), suffix)


class Extremum(Reduce):
    """Base class of ReduceMax and ReduceMin.

    Class attributes:
        from_lowest: Whether the accumulator starts from the dtype's lowest value, else the highest.
    """

    from_lowest: ClassVar[bool]
    selects = True
    host_traits = HostTraits(evaluates_dims=True)
    accuracy = Accuracy.EXACT

    def int_init(self, dtype: DType) -> Code:
        return integer_bound(dtype, low=self.from_lowest)

    def derivative(self, x: Expression, y: Expression, group: ReducedGroup) -> Any:
        chosen = x.constant(1).where(x.equals(y))
        return chosen / group.total(chosen)  # equal elements share the derivative

    def evaluate(self, x: Array, axes: tuple[int, ...]) -> Any:
        if x.dtype == object:
            function = maximum if self.from_lowest else minimum
            return np.frompyfunc(function, 2, 1).reduce(x, axis=axes)
        ufunc = np.maximum if self.from_lowest else np.minimum
        return ufunc.reduce(x, axis=axes, initial=_bound(x.dtype, low=self.from_lowest))


def _bound(dtype: np.dtype[Any], *, low: bool) -> Any:
    """Returns the least (`low`) or greatest value of a dtype; an infinity for floats."""
    if dtype.kind == "f":
        return -math.inf if low else math.inf
    if dtype.kind == "b":
        return not low
    return np.iinfo(dtype).min if low else np.iinfo(dtype).max


@register
class ReduceMax(Extremum):
    """The largest element, NaN if any is. Source: ONNX ReduceMax, opset 1 to 20."""

    from_lowest = True
    init = Code("-INFINITY")
    accumulate, join = Code("c_max(a, x)"), Code("c_max(a, b)")


@register
class ReduceMin(Extremum):
    """The smallest element, NaN if any is. Source: ONNX ReduceMin, opset 1 to 20."""

    from_lowest = False
    init = Code("INFINITY")
    accumulate, join = Code("c_min(a, x)"), Code("c_min(a, b)")


@register
class ReduceL1(Reduce):
    """Σ |x|. Source: ONNX ReduceL1, opset 1 to 18."""

    accumulate = Code("(a + c_abs(x))")

    def derivative(self, x: Expression, y: Expression, group: ReducedGroup) -> Any:
        return x.apply("Sign")

    def evaluate(self, x: Array, axes: tuple[int, ...]) -> Any:
        return np.sum(np.abs(x), axis=axes)


@register
class ReduceSumSquare(Reduce):
    """Σ x². Source: ONNX ReduceSumSquare, opset 1 to 18."""

    accumulate = Code("(x * x + a)")

    def derivative(self, x: Expression, y: Expression, group: ReducedGroup) -> Any:
        return 2 * x

    def evaluate(self, x: Array, axes: tuple[int, ...]) -> Any:
        return np.sum(x * x, axis=axes)


@register
class ReduceL2(Reduce):
    """√Σ x². Source: ONNX ReduceL2, opset 1 to 18."""

    accumulate = Code("(x * x + a)")
    finish = Code("sqrt(a)")
    integers = False

    def derivative(self, x: Expression, y: Expression, group: ReducedGroup) -> Any:
        return (x / y).where(y > 0)

    def evaluate(self, x: Array, axes: tuple[int, ...]) -> Any:
        return np.sqrt(np.sum(x * x, axis=axes))


@register
class ReduceLogSum(Reduce):
    """log Σ x. Source: ONNX ReduceLogSum, opset 1 to 18."""

    finish = Code("c_log(a)")
    integers = False

    def derivative(self, x: Expression, y: Expression, group: ReducedGroup) -> Any:
        return (-y).apply("Exp")

    def evaluate(self, x: Array, axes: tuple[int, ...]) -> Any:
        return np.log(np.sum(x, axis=axes))


@register
class ReduceLogSumExp(Reduce):
    """log Σ exp(x - max(x)) + max(x). Source: ONNX ReduceLogSumExp, opset 1 to 18."""

    accumulate = Code("(a + c_exp(x))")
    finish = Code("c_log(a)")
    shift = True
    integers = False

    def derivative(self, x: Expression, y: Expression, group: ReducedGroup) -> Any:
        return (x - y).apply("Exp")

    def evaluate(self, x: Array, axes: tuple[int, ...]) -> Any:
        x = x.astype(np.float64) if x.dtype.kind in "iu" else x
        top = np.max(x, axis=axes, keepdims=True, initial=-math.inf)
        top = np.where(np.isfinite(top), top, 0)
        total = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True))
        return total + top
