"""EyeLike: ones on a diagonal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, Lowering, Variant, i32
from clrt.ops.base import Accuracy, OnnxNode, Op, Sample, Types, need, register
from clrt.ops.cast import onnx_dtype
from clrt.ops.movement import count, fresh_dims


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    y = node.output
    assert isinstance(node.op, EyeLike)
    if not count(y.dims):
        return []
    rows, columns = y.dims
    k = max(-rows, min(node.op.k, columns))
    one = int.from_bytes(np.ones((), y.dtype.numpy).tobytes(), "little")
    kernel = KernelSpec.of("eye_like.cl", "eye_like", DATA_T=y.dtype.cl_bits, ONE=one)
    args = (BufferArg(y), i32(rows), i32(columns), i32(k))
    return [Launch(kernel, (columns, rows), None, args)]


@register
@dataclass(frozen=True)
class EyeLike(Op):
    """A matrix of the shape of x with ones on the k-th diagonal. Source: ONNX EyeLike, opset 9."""

    dtype: DType | None = None
    k: int = 0

    accuracy = Accuracy.EXACT
    storages = None
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

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        dtype = x.dtype if self.dtype is None else self.dtype.numpy
        rows, columns = x.shape
        return (np.eye(rows, columns, self.k, dtype=dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.zeros((4, 5), np.float32)
        for dtype in (None, DType.INT64, DType.BOOL, DType.FLOAT16, DType.INT32):
            for k in (-9, -1, 0, 2):
                yield Sample(cls(dtype, k), (x,))
        yield Sample(cls(), (np.zeros((0, 3), np.int64),))
        yield Sample(cls(), (np.zeros((1, 1), np.int64),))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        yield Sample(cls(), (np.zeros(3, np.float32),)), ShapeError
