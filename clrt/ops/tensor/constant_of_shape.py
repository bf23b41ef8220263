"""ConstantOfShape: fills a tensor with one number."""

from __future__ import annotations

from typing import Any

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, Launch
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import checked_sizes
from clrt.ops.movement.common import elements, fill_launch, fresh_dims, length, num_elements
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, InputTraits
from clrt.util.fast_dataclass import dataclass


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    y = node.output
    elems = num_elements(y.dims)
    if not elems:
        return []
    return [fill_launch(BufferArg(y), y.dtype, elems, node.op_as(ConstantOfShape).value, ctx)]


@register
@dataclass(frozen=True)
class ConstantOfShape(Op):
    """Returns a tensor with the shape in input 0 and one value in all elements.

    Attributes:
        value: Value of each element.
        dtype: Dtype of the tensor.

    Source: ONNX ConstantOfShape, opset 9 to 25; its attribute is a tensor of one element.
    """

    value: float | int | bool = 0.0
    dtype: DType = DType.FLOAT32

    input_traits = InputTraits(required=(0,), plan_time=(0,))
    host_traits = HostTraits(evaluates_dims=True)
    accuracy = Accuracy.EXACT
    supported_storages = None
    variants = (Variant("fill", _emit),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        value = node.attrs.get("value")
        if value is None:
            return cls()
        return cls(np.asarray(value).reshape(-1)[0].item(), DType.of(value.dtype))

    def to_onnx(self) -> dict[str, Any]:
        return {"value": np.array([self.value], self.dtype.numpy)}

    def infer(self, inputs: Types) -> list[TensorType]:
        wanted = elements(inputs, 0)
        if wanted is None:
            rank = length(inputs, 0)
            return [TensorType(self.dtype, None if rank is None else fresh_dims(rank))]
        shape = checked_sizes(
            wanted, lambda: f"ConstantOfShape: shape {wanted} has a negative dim."
        )
        return [TensorType(self.dtype, shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (shape,) = inputs
        assert shape is not None
        return (np.full(tuple(int(d) for d in shape), self.value, self.dtype.numpy),)
