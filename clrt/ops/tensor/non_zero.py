"""NonZero and Compress: ops whose output size depends on data."""

from __future__ import annotations

import numpy as np

from clrt.errors import InputError, ShapeError
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.movement.common import fresh_dim
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits
from clrt.util.fast_dataclass import dataclass


@register
class NonZero(Op):
    """Returns the indices of the non-zero elements, int64 `[rank, count]`.

    Runs on the host; if x is unknown at plan time, the count is an unknown dim. Source: ONNX
    NonZero, opset 9 to 13.
    """

    host_traits = HostTraits(evaluates_dims=True)
    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        num_columns: Dim = fresh_dim() if x.numbers is None else int(np.count_nonzero(x.numbers))
        rank: Dim = fresh_dim() if x.shape is None else len(x.shape)
        return [TensorType(DType.INT64, (rank, num_columns))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        if not x.ndim:
            return (np.zeros((0, int(bool(x))), np.int64),)
        return (np.array(np.nonzero(x), np.int64),)


@register
@dataclass(frozen=True)
class Compress(Op):
    """Selects slices of x along `axis` (default: elements of x) where the condition is true.

    If `axis` is None, the condition may be multi-dimensional, as in Paddle's masked_select and ONNX
    Runtime. Runs on the host if the condition is unknown at plan time; the size is then an unknown
    dim. Source: ONNX Compress, opset 9 to 11.
    """

    axis: int | None = None

    host_traits = HostTraits(evaluates_dims=True)
    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        x, condition = need(inputs, 0, self), need(inputs, 1, self)
        if condition.shape is not None and len(condition.shape) != 1 and self.axis is not None:
            raise ShapeError(f"Compress: the condition is {condition}; expected one axis.")
        numbers = condition.numbers
        num_selected: Dim = fresh_dim() if numbers is None else int(np.count_nonzero(numbers))
        if self.axis is None:
            return [TensorType(x.dtype, (num_selected,))]
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        axis = normalize_axis(self.axis, len(x.shape), self)
        return [TensorType(x.dtype, (*x.shape[:axis], num_selected, *x.shape[axis + 1 :]))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, condition = inputs
        assert x is not None and condition is not None
        condition = condition.reshape(-1)
        length = x.size if self.axis is None else x.shape[self.axis]
        if condition[length:].any():
            raise InputError(
                f"Compress: the condition is true at {length + int(condition[length:].argmax())}, "
                f"but the axis has only {length} elements."
            )
        return (np.compress(condition, x, self.axis),)
