"""Graph builder that adds ops by their ONNX names, for graphs that clrt generates."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.ir.builder import Builder
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.registry import REGISTRY


def ints(*numbers: int) -> NDArray[np.int64]:
    """Returns an int64 vector of `numbers`."""
    return np.array(numbers, np.int64)


def floats(number: float) -> NDArray[np.float32]:
    """Returns `number` as a float32 array of shape []."""
    return np.array(number, np.float32)


class OpBuilder(Builder):
    """Builds a graph by calls `builder("Op", *inputs, **attributes)` that return the output.

    Arrays among the inputs become constants.

    Attributes:
        inputs: Graph inputs, in the order of the calls of `feed` and `float_feed`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Value] = []

    def feed(self, name: str, dtype: DType, *shape: Dim) -> Value:
        """Adds a graph input of dtype `dtype` and shape `shape`, and returns it."""
        self.inputs.append(self.input(name, dtype, shape))
        return self.inputs[-1]

    def float_feed(self, name: str, dtype: DType, *shape: Dim) -> Value:
        """Adds a graph input of dtype `dtype` and shape `shape`; returns it cast to float32."""
        x = self.feed(name, dtype, *shape)
        return x if dtype is DType.FLOAT32 else self("Cast", x, to=DType.FLOAT32)

    def __call__(self, op_name: str, *args: Value | NDArray[Any], **attributes: Any) -> Value:
        values = [a if isinstance(a, Value) else self.constant(a) for a in args]
        return self.add(REGISTRY.named(op_name)(**attributes), *values)
