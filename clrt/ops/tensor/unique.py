"""Unique: returns the distinct elements or slices, their positions and counts."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import Dim, Shape
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.movement.common import fresh_dim
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass


@register
@dataclass(frozen=True)
class Unique(Op):
    """Returns the distinct elements of x, or the distinct slices along `axis`.

    Outputs: distinct elements or slices; index of the first occurrence of each; for each element of
    x, the index of its distinct value; count of each. Runs on the host; if x is unknown at plan
    time, the number of distinct elements is an unknown dim.

    Attributes:
        axis: Axis of the slices; None for elements of x.
        sorted: 1: in ascending order; 0: in order of first occurrence.

    Source: ONNX Unique, opset 11 to 28.
    """

    axis: int | None = None
    sorted: int = 1

    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is not None and self.axis is not None:
            if not x.shape:
                raise ShapeError("Unique: a scalar has no axis.")
            normalize_axis(self.axis, len(x.shape), self)
        if x.numbers is not None:
            shapes = [a.shape for a in self.reference(x.numbers)]
            dtypes = [x.dtype, *[DType.INT64] * 3]
            return [TensorType(t, s) for t, s in zip(dtypes, shapes, strict=True)]
        num_distinct = fresh_dim()
        along: Dim = fresh_dim() if x.shape is None else 1
        shape: Shape | None = (num_distinct,)
        if x.shape is not None and self.axis is None:
            along = prod(x.shape, start=along)
        elif x.shape is not None and self.axis is not None:
            axis = normalize_axis(self.axis, len(x.shape), self)
            along, shape = x.shape[axis], (*x.shape[:axis], num_distinct, *x.shape[axis + 1 :])
        elif self.axis is not None:
            shape = None
        one = TensorType(DType.INT64, (num_distinct,))
        return [TensorType(x.dtype, shape), one, TensorType(DType.INT64, (along,)), one]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        data = x.reshape(-1) if self.axis is None else x
        axis = 0 if self.axis is None else self.axis
        keys = data if x.dtype.kind in "iufbU" else data.astype(np.float32)
        _, first, inverse, counts = np.unique(keys, True, True, True, axis, equal_nan=False)
        inverse = inverse.reshape(-1)
        if not self.sorted:
            order = np.argsort(first)
            first, counts = first[order], counts[order]
            inverse = np.argsort(order)[inverse]
        y = np.take(data, first, axis)
        return y, *(a.astype(np.int64) for a in (first, inverse, counts))
