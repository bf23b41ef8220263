"""NonZero and Compress: how much comes out depends on the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import InputError, ShapeError
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Sample, Types, need, normalize_axis, register
from clrt.ops.movement import fresh_dim


@register
@dataclass(frozen=True)
class NonZero(Op):
    """The indices of the elements that are not 0, one column each.

    Runs on the host; where x is not known when the plan is made, the number of columns is an
    unknown dim. Source: ONNX NonZero, opset 9 to 13.
    """

    shape_data = True
    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        found: Dim = fresh_dim() if x.numbers is None else int(np.count_nonzero(x.numbers))
        rank: Dim = fresh_dim() if x.shape is None else len(x.shape)
        return [TensorType(DType.INT64, (rank, found))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        if not x.ndim:
            return (np.zeros((0, int(bool(x))), np.int64),)
        return (np.array(np.nonzero(x), np.int64),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in [(), (5,), (3, 4), (0, 2)]:
            yield Sample(cls(), (np.arange(np.prod(shape)).reshape(shape) % 3,))


@register
@dataclass(frozen=True)
class Compress(Op):
    """The slices of x along `axis` (default: its elements) where the condition is true.

    Runs on the host; where the condition is not known when the plan is made, the size is an
    unknown dim. Source: ONNX Compress, opset 9 to 11.
    """

    axis: int | None = None

    shape_data = True
    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        x, condition = need(inputs, 0, self), need(inputs, 1, self)
        if condition.shape is not None and len(condition.shape) != 1:
            raise ShapeError(f"Compress: the condition {condition} has not one axis.")
        numbers = condition.numbers
        found: Dim = fresh_dim() if numbers is None else int(np.count_nonzero(numbers))
        if self.axis is None:
            return [TensorType(x.dtype, (found,))]
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        axis = normalize_axis(self.axis, len(x.shape), self)
        return [TensorType(x.dtype, (*x.shape[:axis], found, *x.shape[axis + 1 :]))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, condition = inputs
        assert x is not None and condition is not None
        length = x.size if self.axis is None else x.shape[self.axis]
        if condition[length:].any():
            raise InputError(
                f"Compress: the condition is true at {length + int(condition[length:].argmax())}; "
                f"there are {length} to choose from."
            )
        return (np.compress(condition, x, self.axis),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        yield Sample(cls(), (x, np.array([True, False, True])))
        yield Sample(cls(-1), (x, np.array([False, True, True, False])))
        yield Sample(cls(0), (x, np.zeros(3, np.bool_)))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        x = np.zeros((2, 3), np.float32)
        yield Sample(cls(2), (x, np.zeros(2, np.bool_))), ShapeError
        yield Sample(cls(0), (x, np.zeros((2, 1), np.bool_))), ShapeError
