"""OneHot: indices as rows that are on at one place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, Lowering, Variant, i32
from clrt.ops.base import Accuracy, Op, Sample, Types, agree, need, normalize_axis, register
from clrt.ops.movement import count, elements, fresh_dim


def _misfit(node: Node, caps: DeviceCaps) -> str | None:
    dtype = node.arg(0).dtype
    if dtype is DType.FLOAT64 and not caps.has_fp64:
        return f"no kernel reads {dtype} indices"
    return None


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    indices, values, y = node.arg(0), node.arg(2), node.output
    assert isinstance(node.op, OneHot)
    if not count(y.dims):
        return []
    axis = normalize_axis(node.op.axis, len(y.dims), node.op)
    outer, depth, inner = count(y.dims[:axis]), y.dims[axis], count(y.dims[axis + 1 :])
    kernel = KernelSpec.of(
        "one_hot.cl",
        "one_hot",
        DATA_T=y.dtype.cl_bits,
        INDEX_T=indices.dtype.cl,
        VALUE_T=indices.dtype.compute,
        IS_FLOAT=int(indices.dtype.is_float),
        STORAGE=indices.dtype.storage,
    )
    buffers = (BufferArg(indices), BufferArg(values), BufferArg(y))
    size = (depth * inner, outer)
    return [Launch(kernel, size, None, (*buffers, i32(depth), i32(inner)))]


@register
@dataclass(frozen=True)
class OneHot(Op):
    """values[1] where the new axis meets the index, values[0] elsewhere.

    Inputs: indices, depth, values. Negative indices count from the end; an index outside
    -depth..depth-1 is nowhere on. Source: ONNX OneHot, opset 9 to 11.
    """

    axis: int = -1

    host_inputs = (1,)
    accuracy = Accuracy.EXACT
    storages = None
    variants = (Variant("flat", _emit, _misfit),)

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

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(0)
        values = np.array([-1.5, 2], np.float32)
        for axis in (-1, 0, 1, -2):
            yield Sample(cls(axis), (rng.integers(-9, 9, (3, 4)), np.array(7), values))
        for dtype in (np.int32, np.float32, np.float16, np.uint8):
            whole = rng.integers(0, 9, 5).astype(dtype)
            yield Sample(cls(), (whole, np.array([65]), np.array([0, 1], np.bool_)))
        yield Sample(cls(), (np.array(2), np.array(3), np.array([5, 6])))
        yield Sample(cls(), (np.zeros((0, 2), np.int64), np.array(3), values))
        yield Sample(cls(), (np.array([1]), np.array(3), values.astype(np.float16)))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        values = np.array([0, 1], np.float32)
        yield Sample(cls(3), (np.zeros((2, 2), np.int64), np.array(3), values)), ShapeError
        yield Sample(cls(), (np.zeros(2, np.int64), np.array(-3), values)), ShapeError
        yield Sample(cls(), (np.zeros(2, np.int64), np.array(3), values[:1])), ShapeError
        yield Sample(cls(), (np.zeros(2, np.int64), np.zeros(0, np.int64), values)), ShapeError
