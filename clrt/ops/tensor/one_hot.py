"""OneHot: converts indices to one-hot vectors."""

from __future__ import annotations

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.dims import Dim
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, Variant, lacks_float64
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import agree, need, normalize_axis
from clrt.ops.movement.common import elements, fresh_dim, num_elements
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    return lacks_float64((node.arg(0).dtype,), caps)


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    indices, values, y = node.arg(0), node.arg(2), node.output
    op = node.op_as(OneHot)
    if not num_elements(y.dims):
        return []
    axis = normalize_axis(op.axis, len(y.dims), op)
    outer, depth, inner = (
        num_elements(y.dims[:axis]),
        y.dims[axis],
        num_elements(y.dims[axis + 1 :]),
    )
    kernel = KernelSpec.of(
        "tensor/one_hot.cl",
        "one_hot",
        DATA_T=y.dtype.cl_bits,
        INDEX_T=indices.dtype.cl,
        VALUE_T=indices.dtype.compute,
        IS_FLOAT=int(indices.dtype.is_float),
        STORAGE=indices.dtype.storage,
    )
    size = (depth * inner, outer)
    return [launch(kernel, size, indices=indices, values=values, y=y, depth=depth, inner=inner)]


@register
@dataclass(frozen=True)
class OneHot(Op):
    """Encodes indices along a new axis: values[1] at the index, values[0] elsewhere.

    Inputs: indices; depth, the size of the new axis; values `[2]`. Negative indices count from the
    end; an index outside -depth..depth-1 gives values[0] everywhere.

    Attributes:
        axis: Position of the new axis in the output.

    Source: ONNX OneHot, opset 9 to 11.
    """

    axis: int = -1

    input_traits = InputTraits(required=(1,), plan_time=(1,))
    accuracy = Accuracy.EXACT
    supported_storages = None
    variants = (Variant("flat", _emit, _reject),)

    def infer(self, inputs: Types) -> list[TensorType]:
        indices, values = need(inputs, 0, self), need(inputs, 2, self)
        dtype = values.dtype
        if not agree(values, (2,)):
            raise ShapeError(f"OneHot: the values are {values}; expected two, [off, on].")
        if indices.shape is None:
            return [TensorType(dtype, None)]
        axis = normalize_axis(self.axis, len(indices.shape) + 1, self)
        known = elements(inputs, 1)
        if known is not None and len(known) != 1:
            raise ShapeError(f"OneHot: depth has {len(known)} elements; expected one.")
        depth: Dim = fresh_dim() if known is None else known[0]
        if isinstance(depth, int) and depth < 0:
            raise ShapeError(f"OneHot: depth {depth} is negative.")
        return [TensorType(dtype, (*indices.shape[:axis], depth, *indices.shape[axis:]))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        indices, depth, values = inputs
        assert indices is not None and depth is not None and values is not None
        axis = normalize_axis(self.axis, indices.ndim + 1, self)
        places = int(depth.reshape(-1)[0])
        if indices.dtype.kind == "f":
            wide = indices.astype(np.float64)
            indices = np.where(np.abs(wide) < 1e9, wide, -(2.0**63))
        whole = np.expand_dims(indices.astype(np.int64), axis)
        whole = np.where(whole < 0, whole + places, whole)
        span = np.arange(places).reshape((-1,) + (1,) * (indices.ndim - axis))
        return (np.where(whole == span, values[1], values[0]).astype(values.dtype),)
