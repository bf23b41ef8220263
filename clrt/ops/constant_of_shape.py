"""ConstantOfShape: one number everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, Launch, Lowering, Variant
from clrt.ops.base import Accuracy, OnnxNode, Op, Sample, Types, checked_sizes, register
from clrt.ops.movement import count, elements, fill_launch, fresh_dims, length


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    y = node.output
    assert isinstance(node.op, ConstantOfShape)
    elems = count(y.dims)
    return [fill_launch(BufferArg(y), y.dtype, elems, node.op.value)] if elems else []


@register
@dataclass(frozen=True)
class ConstantOfShape(Op):
    """A tensor of the shape that input 0 holds, filled with `value` (of `dtype`).

    Source: ONNX ConstantOfShape, opset 9 to 25; its attribute is a tensor of one element.
    """

    value: float | int | bool = 0.0
    dtype: DType = DType.FLOAT32

    host_inputs = (0,)
    shape_data = True
    accuracy = Accuracy.EXACT
    storages = None
    variants = (Variant("fill", _emit),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        value = node.attrs.get("value")
        if value is None:
            return cls()
        return cls(np.asarray(value).reshape(-1)[0].item(), DType.of(value.dtype))

    def infer(self, inputs: Types) -> list[TensorType]:
        wanted = elements(inputs, 0)
        if wanted is None:
            rank = length(inputs, 0)
            return [TensorType(self.dtype, None if rank is None else fresh_dims(rank))]
        shape = checked_sizes(wanted, f"ConstantOfShape: shape {wanted} has a negative dim.")
        return [TensorType(self.dtype, shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (shape,) = inputs
        assert shape is not None
        return (np.full(tuple(int(d) for d in shape), self.value, self.dtype.numpy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in [(), (3,), (2, 65), (0, 2)]:
            wanted = np.array(shape, np.int64)
            yield Sample(cls(), (wanted,))
            yield Sample(cls(-1.5, DType.FLOAT16), (wanted,))
            yield Sample(cls(-7, DType.INT64), (wanted,))
            yield Sample(cls(True, DType.BOOL), (wanted,))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        yield Sample(cls(), (np.array([2, -1]),)), ShapeError
