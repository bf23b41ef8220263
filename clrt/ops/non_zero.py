"""NonZero and Compress: how much comes out depends on the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from clrt.errors import InputError, ShapeError
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Sample, Types, need, node_of, normalize_axis, register
from clrt.ops.gather import Gather
from clrt.ops.movement import fresh_dim
from clrt.ops.views import Reshape


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

    Of elements the condition may have the axes, too: Paddle's masked_select, and ONNX Runtime.
    Runs on the host where the condition is not known when the plan is made: the size is then an
    unknown dim. Source: ONNX Compress, opset 9 to 11.
    """

    axis: int | None = None

    shape_data = True
    accuracy = Accuracy.EXACT

    def expand(self, inputs: Sequence[Value | None]) -> tuple[Graph, Sequence[Value | None]] | None:
        """The slices by their numbers, where the condition is known."""
        x, condition = inputs
        assert x is not None and condition is not None
        if condition.numbers is None or not x.type.is_static:
            return None
        axis = 0 if self.axis is None else normalize_axis(self.axis, len(x.dims), self)
        places = np.flatnonzero(condition.numbers)
        if places.size and places[-1] >= (prod(x.dims) if self.axis is None else x.dims[axis]):
            return None  # which the reference says
        formal = Value("x", x.type)
        nodes: list[Node] = []
        if self.axis is None:
            line = Value("line", TensorType.of(np.array([-1], np.int64)))
            nodes.append(node_of(Reshape(), [formal, line], "Reshape"))
        source = nodes[-1].output if nodes else formal
        indices = Value("indices", TensorType.of(places.astype(np.int64)))
        nodes.append(node_of(Gather(axis), [source, indices], "Gather"))
        return Graph(self.name, [formal], [nodes[-1].output], nodes), [x]

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

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        yield Sample(cls(), (x, np.array([True, False, True])))
        yield Sample(cls(), (x, x > 4))
        yield Sample(cls(-1), (x, np.array([False, True, True, False])))
        yield Sample(cls(0), (x, np.zeros(3, np.bool_)))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        x = np.zeros((2, 3), np.float32)
        yield Sample(cls(2), (x, np.zeros(2, np.bool_))), ShapeError
        yield Sample(cls(0), (x, np.zeros((2, 1), np.bool_))), ShapeError
