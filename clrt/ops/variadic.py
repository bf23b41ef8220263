"""Elementwise ops over a varying number of operands: Clip, Max, Min, Sum, Mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clrt.ir.code import Code
from clrt.ir.dims import maximum, minimum
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, OnnxNode, Sample, node_of, register
from clrt.ops.pointwise import Div, NumpyFunction, Pointwise, either

# Operands of one kernel: 36 bytes of arguments each where they broadcast, and a device takes 1024.
MAX_OPERANDS = 24


@register
@dataclass(frozen=True)
class Clip(Pointwise):
    """min(max(x, low), high) with optional bounds as inputs. Source: ONNX Clip, opset 6 to 13."""

    has_min: bool = True
    has_max: bool = True
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

    def takes(self, operands: int) -> bool:
        return operands == 1 + self.has_min + self.has_max

    def evaluate(self, *arrays: Array) -> Any:
        x, *bounds = arrays
        if self.has_min:
            x = np.maximum(x, bounds[0])
        return np.minimum(x, bounds[-1]) if self.has_max else x

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        text, prefix = args[0], _prefix(dtypes[0])
        if self.has_min:
            text = Code("{}max({}, {})").fill(prefix, text, args[1])
        if self.has_max:
            text = Code("{}min({}, {})").fill(prefix, text, args[-1])
        return text

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.linspace(-5, 5, 23).astype(np.float32)
        low, high = np.float32(-1.5), np.float32(2.0)
        yield Sample(cls(), (x, np.asarray(low), np.asarray(high)))
        yield Sample(cls(True, False), (x, np.asarray(low)))
        yield Sample(cls(False, True), (x, np.asarray(high)))
        integers = np.arange(-9, 9)
        yield Sample(cls(), (integers, np.asarray(-2), np.asarray(5)))


def _prefix(dtype: DType) -> Code:
    """Of the functions for a dtype."""
    if dtype is DType.FLOAT64:
        return Code("d_")
    return Code("c_") if dtype.is_float else Code("i_")


@dataclass(frozen=True)
class Variadic(Pointwise):
    """Base of ops over one or more operands; many are several nodes.

    Numerics: operands are taken in pairs, and then the results of these.
    """

    arity = 2

    def takes(self, operands: int) -> bool:
        return operands > 0

    def expand(self, inputs: Sequence[Value | None]) -> tuple[Graph, Sequence[Value | None]] | None:
        given = [v for v in inputs if v is not None]
        if len(given) <= MAX_OPERANDS:
            return None
        formal = [Value(f"x{k}", TensorType(v.dtype, v.shape)) for k, v in enumerate(given)]
        nodes: list[Node] = []
        level = formal
        while len(level) > 1:
            parts = [level[k : k + MAX_OPERANDS] for k in range(0, len(level), MAX_OPERANDS)]
            level = []
            for part in parts:
                nodes.append(node_of(self.partial, part, f"{self.name}{len(nodes)}"))
                level.append(nodes[-1].output)
        nodes += self.finish(level[0], len(given))
        return Graph(self.name, formal, [nodes[-1].output], nodes), given

    @property
    def partial(self) -> Variadic:
        """The op of some of many operands, and of the results."""
        return self

    def finish(self, total: Value, count: int) -> list[Node]:
        """What comes after the partial results of `count` operands are one."""
        return []

    def fold(self, left: Code, right: Code, dtypes: Sequence[DType]) -> Code:
        """The expression of two operands."""
        raise NotImplementedError

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        texts = list(args)
        while len(texts) > 1:
            pairs = zip(texts[::2], texts[1::2], strict=False)
            odd = texts[-1:] if len(texts) % 2 else []
            texts = [*(self.fold(a, b, dtypes) for a, b in pairs), *odd]
        return texts[0].renamed(Code("@"), _prefix(dtypes[0]))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        rng = np.random.default_rng(5)
        for count in (1, 3, MAX_OPERANDS):
            yield Sample(cls(), tuple(cls.draw(rng, (3, 5), DType.FLOAT32) for _ in range(count)))


@register
@dataclass(frozen=True)
class Max(Variadic):
    """The largest operand, NaN if any is. Source: ONNX Max, opset 6 to 13."""

    accuracy = Accuracy.EXACT
    integers = True
    shape_data = True

    def evaluate(self, *arrays: Array) -> Any:
        return _reduce(either(np.maximum, maximum), arrays)

    def fold(self, left: Code, right: Code, dtypes: Sequence[DType]) -> Code:
        return Code("@max({}, {})").fill(left, right)


@register
@dataclass(frozen=True)
class Min(Variadic):
    """The smallest operand, NaN if any is. Source: ONNX Min, opset 6 to 13."""

    accuracy = Accuracy.EXACT
    integers = True
    shape_data = True

    def evaluate(self, *arrays: Array) -> Any:
        return _reduce(either(np.minimum, minimum), arrays)

    def fold(self, left: Code, right: Code, dtypes: Sequence[DType]) -> Code:
        return Code("@min({}, {})").fill(left, right)


@register
@dataclass(frozen=True)
class Sum(Variadic):
    """The sum of the operands. Source: ONNX Sum, opset 6 to 13."""

    accuracy = Accuracy.ELEMENTWISE

    def evaluate(self, *arrays: Array) -> Any:
        return _reduce(np.add, arrays)

    def fold(self, left: Code, right: Code, dtypes: Sequence[DType]) -> Code:
        return Code("({} + {})").fill(left, right)


@register
@dataclass(frozen=True)
class Mean(Variadic):
    """The mean of the operands. Source: ONNX Mean, opset 6 to 13."""

    accuracy = Accuracy.ELEMENTWISE

    def evaluate(self, *arrays: Array) -> Any:
        return _reduce(np.add, arrays) / len(arrays)

    def fold(self, left: Code, right: Code, dtypes: Sequence[DType]) -> Code:
        return Code("({} + {})").fill(left, right)

    @property
    def partial(self) -> Variadic:
        return Sum()

    def finish(self, total: Value, count: int) -> list[Node]:
        divisor = Value("count", TensorType.of(np.asarray(count, total.dtype.numpy)))
        return [node_of(Div(), [total, divisor], "mean")]

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        total = super().cl(args, dtypes)
        return None if total is None else Code("({} / {})").fill(total, len(args))


def _reduce(function: NumpyFunction, arrays: Sequence[Array]) -> Any:
    result: Any = arrays[0]
    for array in arrays[1:]:
        result = function(result, array)
    return result
