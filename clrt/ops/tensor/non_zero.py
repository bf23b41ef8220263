"""NonZero and Compress: how much comes out depends on the data."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from clrt.errors import InputError, ShapeError
from clrt.ir.builder import Builder
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.movement.common import fresh_dim
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.views import Reshape
from clrt.ops.registry import register


@register
class NonZero(Op):
    """The indices of the elements that are not 0, one column each.

    Runs on the host; where x is not known when the plan is made, the number of columns is an
    unknown dim. Source: ONNX NonZero, opset 9 to 13.
    """

    evaluates_dims = True
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


@register
@dataclass(frozen=True)
class Compress(Op):
    """The slices of x along `axis` (default: its elements) where the condition is true.

    Of elements the condition may have the axes, too: Paddle's masked_select, and ONNX Runtime.
    Runs on the host where the condition is not known when the plan is made: the size is then an
    unknown dim. Source: ONNX Compress, opset 9 to 11.
    """

    axis: int | None = None

    evaluates_dims = True
    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        x, condition = need(inputs, 0, self), need(inputs, 1, self)
        if condition.shape is not None and len(condition.shape) != 1 and self.axis is not None:
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
        condition = condition.reshape(-1)
        length = x.size if self.axis is None else x.shape[self.axis]
        if condition[length:].any():
            raise InputError(
                f"Compress: the condition is true at {length + int(condition[length:].argmax())}; "
                f"there are {length} to choose from."
            )
        return (np.compress(condition, x, self.axis),)


@register_decomposition(Compress, audience=DecompositionStage.PLANNING)
def _gathered(node: Node, make: Builder) -> list[Value] | None:
    """The slices by their numbers, where the condition is known."""
    op, x, condition = node.op, node.arg(0), node.arg(1)
    assert isinstance(op, Compress)
    if condition.numbers is None or not x.type.is_static:
        return None
    axis = 0 if op.axis is None else normalize_axis(op.axis, len(x.dims), op)
    places = np.flatnonzero(condition.numbers)
    if places.size and places[-1] >= (prod(x.dims) if op.axis is None else x.dims[axis]):
        return None  # which the reference says
    source = make.add(Reshape(), x, make.ints(-1)) if op.axis is None else x
    return [make.add(Gather(axis), source, make.constant(places.astype(np.int64)))]
