"""Shape and Size: return shapes, which the planner knows, as tensors."""

from __future__ import annotations

import numpy as np

from clrt.ir.dims import Dim, Shape, product
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType, dims_array
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import fresh_dim
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass


@register
@dataclass(frozen=True)
class Shape_(Op):
    """Returns the dims of x from axis `start` to before axis `end` (None: to the last), int64.

    Source: ONNX Shape, opset 1 to 25.
    """

    start: int = 0
    end: int | None = None

    name = "Shape"
    accuracy = Accuracy.EXACT

    def part(self, shape: Shape) -> list[Dim]:
        """Returns the dims of `shape` that the op selects, from `start` to before `end`.

        `start` and `end` are clamped to the rank.
        """
        return list(shape[self.start : self.end])

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(DType.INT64, (fresh_dim(),))]
        return [TensorType.of_dims(self.part(x.shape))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        return (np.array(self.part(x.shape), np.int64),)


@register
class Size(Op):
    """Returns the number of elements of x, int64. Source: ONNX Size, opset 1 to 25."""

    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(DType.INT64, ())]
        data = dims_array([product(x.shape)]).reshape(())
        return [TensorType(DType.INT64, (), data)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        return (np.array(x.size, np.int64),)
