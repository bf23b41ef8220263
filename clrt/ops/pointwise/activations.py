"""Elementwise activation functions with attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from clrt.ir.cl_code import Code
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.gradients.expression import Expression
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.conversions import literal
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass


class Parametric(Pointwise):
    """Base class of activations with float attributes.

    In `expr`, the name of an attribute in braces, such as `{alpha}`, stands for its value.
    """

    def fill(self, template: Code, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        dtype = DType.FLOAT64 if dtypes[0] is DType.FLOAT64 else DType.FLOAT32
        values = {
            f.name: literal(v, dtype)
            for f in fields(self)
            if isinstance(v := getattr(self, f.name), float)
        }
        return Code("({})").substitute(template.substitute(*args, **values))


@register
@dataclass(frozen=True)
class LeakyRelu(Parametric):
    """x for x >= 0, else alpha x. Source: ONNX LeakyRelu, opset 6 to 16."""

    alpha: float = 0.01
    expr = Code("PICK({0} < 0, {alpha} * {0}, {0})")

    def derivative(self, *operands: Expression) -> Any:
        x, _ = operands
        return x.constant(1).where(x >= 0, self.alpha)

    def evaluate(self, *arrays: Array) -> Any:
        return np.where(arrays[0] < 0, self.alpha * arrays[0], arrays[0])


@register
@dataclass(frozen=True)
class Elu(Parametric):
    """x for x >= 0, else alpha (exp(x) - 1). Source: ONNX Elu, opset 6 to 22."""

    alpha: float = 1.0
    expr = Code("PICK({0} < 0, {alpha} * @expm1({0}), {0})")

    def derivative(self, *operands: Expression) -> Any:
        x, y = operands
        return (y + self.alpha).where(x < 0, 1)

    def evaluate(self, *arrays: Array) -> Any:
        return np.where(arrays[0] < 0, self.alpha * np.expm1(arrays[0]), arrays[0])


@register
@dataclass(frozen=True)
class Celu(Parametric):
    """x for x >= 0, else alpha (exp(x / alpha) - 1). Source: ONNX Celu, opset 12."""

    alpha: float = 1.0
    expr = Code("PICK({0} < 0, {alpha} * @expm1({0} / {alpha}), {0})")

    def derivative(self, *operands: Expression) -> Any:
        x, y = operands
        return (y / self.alpha + 1).where(x < 0, 1)

    def evaluate(self, *arrays: Array) -> Any:
        x = arrays[0]
        return np.maximum(x, 0) + np.minimum(0, self.alpha * np.expm1(x / self.alpha))


@register
@dataclass(frozen=True)
class Selu(Parametric):
    """gamma x for x >= 0, else gamma alpha (exp(x) - 1). Source: ONNX Selu, opset 6 to 22."""

    alpha: float = 1.6732632423543772
    gamma: float = 1.0507009873554805
    expr = Code("{gamma} * PICK({0} < 0, {alpha} * @expm1({0}), {0})")

    def derivative(self, *operands: Expression) -> Any:
        x, y = operands
        return (y + self.gamma * self.alpha).where(x < 0, self.gamma)

    def evaluate(self, *arrays: Array) -> Any:
        x = arrays[0]
        return self.gamma * np.where(x < 0, self.alpha * np.expm1(x), x)


@register
@dataclass(frozen=True)
class HardSigmoid(Parametric):
    """clip(alpha x + beta, 0, 1). Source: ONNX HardSigmoid, opset 6 to 22."""

    alpha: float = 0.2
    beta: float = 0.5
    expr = Code("@max(@min({alpha} * {0} + {beta}, (F)1), (F)0)")

    def derivative(self, *operands: Expression) -> Any:
        _, y = operands
        return y.constant(self.alpha).where((y > 0) & (y < 1))

    def evaluate(self, *arrays: Array) -> Any:
        return np.clip(self.alpha * arrays[0] + self.beta, 0, 1)


@register
@dataclass(frozen=True)
class ThresholdedRelu(Parametric):
    """x for x > alpha, else 0. Source: ONNX ThresholdedRelu, opset 10 to 22."""

    alpha: float = 1.0
    expr = Code("PICK({0} > {alpha}, {0}, (F)0)")

    def derivative(self, *operands: Expression) -> Any:
        x, _ = operands
        return x > self.alpha

    def evaluate(self, *arrays: Array) -> Any:
        return np.where(arrays[0] > self.alpha, arrays[0], 0)


@register
@dataclass(frozen=True)
class Swish(Parametric):
    """x sigmoid(alpha x). Source: ONNX Swish, opset 24."""

    alpha: float = 1.0
    expr = Code("{0} * @sigmoid({alpha} * {0})")

    def derivative(self, *operands: Expression) -> Any:
        x, y = operands
        sigmoid = (self.alpha * x).apply("Sigmoid")
        return sigmoid + self.alpha * y * (1 - sigmoid)

    def evaluate(self, *arrays: Array) -> Any:
        return arrays[0] / (1 + np.exp(-self.alpha * arrays[0].astype(np.float64)))


@register
class PRelu(Pointwise):
    """x for x >= 0, else slope x. Source: ONNX PRelu, opset 7 to 16."""

    expr = Code("PICK({0} < 0, {1} * {0}, {0})")
    arity = 2
    function = staticmethod(lambda x, slope: np.where(x < 0, slope * x, x))

    def derivative(self, *operands: Expression) -> Any:
        x, slope, _ = operands
        return x.constant(1).where(x >= 0, slope), x.where(x < 0)
