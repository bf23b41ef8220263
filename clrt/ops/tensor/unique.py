"""Unique: the different elements or slices, where they are, and how many there are of each."""

from __future__ import annotations

from dataclasses import dataclass
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


@register
@dataclass(frozen=True)
class Unique(Op):
    """The different elements of x, or slices along `axis`, sorted or in the order they come first.

    Outputs: them, the index of the first of each, for each of x which one it is, how many there
    are of each. Runs on the host; where x is not known when the plan is made, their number is an
    unknown dim. Source: ONNX Unique, opset 11 to 28.
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
        found = fresh_dim()
        along: Dim = fresh_dim() if x.shape is None else 1
        shape: Shape | None = (found,)
        if x.shape is not None and self.axis is None:
            along = prod(x.shape, start=along)
        elif x.shape is not None and self.axis is not None:
            axis = normalize_axis(self.axis, len(x.shape), self)
            along, shape = x.shape[axis], (*x.shape[:axis], found, *x.shape[axis + 1 :])
        elif self.axis is not None:
            shape = None
        one = TensorType(DType.INT64, (found,))
        return [TensorType(x.dtype, shape), one, TensorType(DType.INT64, (along,)), one]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        given = x.reshape(-1) if self.axis is None else x
        axis = 0 if self.axis is None else self.axis
        keys = given if x.dtype.kind in "iufbU" else given.astype(np.float32)
        _, first, inverse, counts = np.unique(keys, True, True, True, axis, equal_nan=False)
        inverse = inverse.reshape(-1)
        if not self.sorted:
            order = np.argsort(first)
            first, counts = first[order], counts[order]
            inverse = np.argsort(order)[inverse]
        y = np.take(given, first, axis)
        return y, *(a.astype(np.int64) for a in (first, inverse, counts))
