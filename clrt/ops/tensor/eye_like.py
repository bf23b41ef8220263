"""EyeLike: returns a matrix with ones on a diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import fresh_dims, num_elements
from clrt.ops.pointwise.cast import onnx_dtype
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    y = node.output
    if not num_elements(y.dims):
        return []
    rows, columns = y.dims
    k = max(-rows, min(node.op_as(EyeLike).k, columns))
    one = int.from_bytes(np.ones((), y.dtype.numpy).tobytes(), "little")
    kernel = KernelSpec.of("tensor/eye_like.cl", "eye_like", DATA_T=y.dtype.cl_bits, ONE=one)
    return [launch(kernel, (columns, rows), y=y, rows=rows, columns=columns, k=k)]


@register
@dataclass(frozen=True)
class EyeLike(Op):
    """Returns a matrix of the shape of x with ones on the k-th diagonal, else zeros.

    Source: ONNX EyeLike, opset 9.

    Attributes:
        dtype: Output dtype; None for that of x.
        k: Diagonal; above the main one if positive.
    """

    dtype: DType | None = None
    k: int = 0

    accuracy = Accuracy.EXACT
    supported_storages = None
    variants = (Variant("flat", _emit),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        code = node.attrs.get("dtype")
        return cls(None if code is None else onnx_dtype(code, cls.name), node.attrs.get("k", 0))

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is not None and len(x.shape) != 2:
            raise ShapeError(f"EyeLike: {x} has rank {len(x.shape)}; expected 2.")
        return [TensorType(self.dtype or x.dtype, fresh_dims(2) if x.shape is None else x.shape)]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        return [None]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        dtype = x.dtype if self.dtype is None else self.dtype.numpy
        rows, columns = x.shape
        return (np.eye(rows, columns, self.k, dtype=dtype),)
