"""Elementwise ops over a varying number of operands: Clip, Max, Min, Sum, Mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.cl_code import Code
from clrt.ir.dim_operations import maximum, minimum
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.ops.base import Accuracy, OnnxNode
from clrt.ops.gradients.expression import Expression
from clrt.ops.pointwise.base import NumpyFunction, Pointwise
from clrt.ops.pointwise.table import Div, either
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, OnnxTraits
from clrt.util.fast_dataclass import dataclass

# Maximum operands of a kernel: each has 36 bytes of arguments if it broadcasts, and devices
# support 1024 bytes.
MAX_OPERANDS = 24


@register
@dataclass(frozen=True)
class Clip(Pointwise):
    """min(max(x, low), high); the bounds low and high are optional inputs.

    Attributes:
        has_min: Whether the lower bound is an input.
        has_max: Whether the upper bound is an input.

    Source: ONNX Clip, opset 6 to 13.
    """

    has_min: bool = True
    has_max: bool = True
    onnx_traits = OnnxTraits(non_attribute_fields=frozenset({"has_min", "has_max"}))
    accuracy = Accuracy.EXACT
    integers = True
    arity = 3

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Clip:
        dtype = node.types[node.inputs[0]].dtype.numpy
        for index, key in enumerate(("min", "max"), start=1):
            if key in node.attrs:
                node.set_input(index, np.asarray(node.attrs[key]).astype(dtype))
        present = [i < len(node.inputs) and bool(node.inputs[i]) for i in (1, 2)]
        node.inputs[:] = [n for n in node.inputs if n]
        return cls(*present)

    def onnx_inputs(self, inputs: Sequence[Value | None]) -> list[Value | None]:
        x, *bounds = inputs
        low = bounds[0] if self.has_min else None
        high = bounds[-1] if self.has_max else None
        return [x, low, high] if high is not None else [x, low] if low is not None else [x]

    def takes(self, operands: int) -> bool:
        return operands == 1 + self.has_min + self.has_max

    def derivative(self, *operands: Expression) -> Any:
        x, *bounds, _ = operands
        parts = []
        inside = None
        if self.has_max:  # applied last, so that it decides where the bounds cross
            high = x > bounds[-1]
            if self.has_min:
                high = bounds[0].apply("Max", x) > bounds[-1]
            inside = ~high
            parts.append(high)
        if self.has_min:
            low = x < bounds[0]
            parts.insert(0, low if inside is None else low & inside)
            inside = ~low if inside is None else inside & ~low
        return 1 if inside is None else (inside, *parts)

    def evaluate(self, *arrays: Array) -> Any:
        x, *bounds = arrays
        if self.has_min:
            x = np.maximum(x, bounds[0])
        return np.minimum(x, bounds[-1]) if self.has_max else x

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        text, prefix = args[0], _prefix(dtypes[0])
        if self.has_min:
            text = Code("{}max({}, {})").substitute(prefix, text, args[1])
        if self.has_max:
            text = Code("{}min({}, {})").substitute(prefix, text, args[-1])
        return text


def _prefix(dtype: DType) -> Code:
    """Returns the prefix of the OpenCL C functions max and min for `dtype`: "d_", "c_" or "i_"."""
    if dtype is DType.FLOAT64:
        return Code("d_")
    return Code("c_") if dtype.is_float else Code("i_")


class Variadic(Pointwise):
    """Base class of elementwise ops of one or more operands, such as Max and Sum.

    Planning splits a node with more than `MAX_OPERANDS` operands into several nodes.

    Numerics: operands are reduced pairwise, as a tree.
    """

    arity = 2

    def takes(self, operands: int) -> bool:
        return operands > 0

    @property
    def partial(self) -> Variadic:
        """Op of the nodes into which planning splits a node with many operands.

        Such a node combines up to `MAX_OPERANDS` operands, or results of other such nodes.
        """
        return self

    def finish(self, total: Value, count: int, make: Builder) -> Value:
        """Adds the nodes that turn combined operands into the result.

        Args:
            total: All operands, combined by `partial`.
            count: Number of operands.
            make: Builder that adds the nodes.

        Returns:
            The result; `total` by default.
        """
        return total

    def fold(self, left: Code, right: Code, dtypes: Sequence[DType]) -> Code:
        """Returns the OpenCL C expression that combines two operands.

        Args:
            left: Expression of the first operand.
            right: Expression of the second operand.
            dtypes: Dtypes of all operands.
        """
        raise NotImplementedError

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        texts = list(args)
        while len(texts) > 1:
            pairs = zip(texts[::2], texts[1::2], strict=False)
            odd = texts[-1:] if len(texts) % 2 else []
            texts = [*(self.fold(a, b, dtypes) for a, b in pairs), *odd]
        return texts[0].renamed(Code("@"), _prefix(dtypes[0]))


class Extreme(Variadic):
    """Base class of Max and Min: operands that are equal share the derivative."""

    def derivative(self, *operands: Expression) -> Any:
        *inputs, y = operands
        if len(inputs) == 1:
            return (1,)
        chosen = [y.constant(1).where(y.equals(x)) for x in inputs]
        ties = chosen[0].apply("Sum", *chosen[1:])
        return tuple(c / ties for c in chosen)


@register
class Max(Extreme):
    """The largest operand, NaN if any is. Source: ONNX Max, opset 6 to 13."""

    accuracy = Accuracy.EXACT
    integers = True
    host_traits = HostTraits(evaluates_dims=True)

    def evaluate(self, *arrays: Array) -> Any:
        return _reduce(either(np.maximum, maximum), arrays)

    def fold(self, left: Code, right: Code, dtypes: Sequence[DType]) -> Code:
        return Code("@max({}, {})").substitute(left, right)


@register
class Min(Extreme):
    """The smallest operand, NaN if any is. Source: ONNX Min, opset 6 to 13."""

    accuracy = Accuracy.EXACT
    integers = True
    host_traits = HostTraits(evaluates_dims=True)

    def evaluate(self, *arrays: Array) -> Any:
        return _reduce(either(np.minimum, minimum), arrays)

    def fold(self, left: Code, right: Code, dtypes: Sequence[DType]) -> Code:
        return Code("@min({}, {})").substitute(left, right)


@register
class Sum(Variadic):
    """The sum of the operands. Source: ONNX Sum, opset 6 to 13."""

    accuracy = Accuracy.ELEMENTWISE

    def derivative(self, *operands: Expression) -> Any:
        return (1,) * (len(operands) - 1)

    def evaluate(self, *arrays: Array) -> Any:
        return _reduce(np.add, arrays)

    def fold(self, left: Code, right: Code, dtypes: Sequence[DType]) -> Code:
        return Code("({} + {})").substitute(left, right)


@register
class Mean(Variadic):
    """The mean of the operands. Source: ONNX Mean, opset 6 to 13."""

    accuracy = Accuracy.ELEMENTWISE

    def derivative(self, *operands: Expression) -> Any:
        count = len(operands) - 1
        return (1 / count,) * count

    def evaluate(self, *arrays: Array) -> Any:
        return _reduce(np.add, arrays) / len(arrays)

    def fold(self, left: Code, right: Code, dtypes: Sequence[DType]) -> Code:
        return Code("({} + {})").substitute(left, right)

    @property
    def partial(self) -> Variadic:
        return Sum()

    def finish(self, total: Value, count: int, make: Builder) -> Value:
        return make.add(Div(), total, make.numbers(count, total.dtype))

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        total = super().cl(args, dtypes)
        return None if total is None else Code("({} / {})").substitute(total, len(args))


def _reduce(function: NumpyFunction, arrays: Sequence[Array]) -> Any:
    result: Any = arrays[0]
    for array in arrays[1:]:
        result = function(result, array)
    return result
