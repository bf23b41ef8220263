"""Gather: rows of a table, along any axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import InputError, ShapeError, UnsupportedError
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import (
    BufferArg,
    KernelSpec,
    Launch,
    Lowering,
    Status,
    Variant,
    ceil_div,
    i32,
)
from clrt.ops.base import Accuracy, Op, Sample, Types, need, normalize_axis, register
from clrt.ops.movement import bits_t, count, index_t

VECTOR_BYTES = 16
# Vectors that one work-item copies: a CPU runs work-items in a loop whose overhead this shares.
CPU_VECTORS = 8


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, indices, y = node.arg(0), node.arg(1), node.output
    assert isinstance(node.op, Gather)
    if not count(y.dims):
        return []
    axis = normalize_axis(node.op.axis, len(x.dims), node.op)
    outer, n, inner = count(x.dims[:axis]), x.dims[axis], count(x.dims[axis + 1 :])
    if n == 0:
        raise UnsupportedError(f"axis {axis} of '{x.name}' has no elements to gather from.")
    rows = count(indices.dims)
    status = Status(
        f"Gather '{node.name}': an index is outside -{n}..{n - 1} (axis {axis} of '{x.name}')."
    )
    lanes = VECTOR_BYTES // x.dtype.itemsize
    vector = inner % lanes == 0
    units = inner // lanes if vector else inner
    per_item = min(CPU_VECTORS, units) if ctx.caps.is_cpu else 1
    per_item = 1 << (per_item.bit_length() - 1)
    kernel = KernelSpec.of(
        "gather.cl",
        "gather",
        DATA_T=bits_t(x.dtype),
        COPY_T="uint4" if vector else bits_t(x.dtype),
        INDEX_T=index_t(indices),
        T_PER_ITEM=per_item,
        ROWS_FIRST=int(units == 1),
    )
    chunks = ceil_div(units, per_item)
    size = (rows, chunks, outer) if units == 1 else (chunks, rows, outer)
    buffers = (BufferArg(x), BufferArg(indices), BufferArg(y), BufferArg(status))
    return [Launch(kernel, size, None, (*buffers, i32(n), i32(rows), i32(units)))]


@register
@dataclass(frozen=True)
class Gather(Op):
    """y[o, i, r] = x[o, indices[i], r] with o before and r after `axis`; -1 is the last row.

    Source: ONNX Gather, opset 1 to 13. An index outside the axis is an error that the run reports.
    """

    axis: int = 0

    accuracy = Accuracy.EXACT
    shape_data = True
    variants = (Variant("rows", _emit),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, indices = need(inputs, 0, self), need(inputs, 1, self)
        if x.shape is None or indices.shape is None:
            return [TensorType(x.dtype, None)]
        if not x.shape:
            raise ShapeError("Gather: the data is a scalar; expected a rank of at least 1.")
        axis = normalize_axis(self.axis, len(x.shape), self)
        return [TensorType(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :])]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, indices = inputs
        assert x is not None and indices is not None
        n = x.shape[self.axis]
        if indices.dtype != object and indices.size:
            low, high = int(indices.min()), int(indices.max())
            if low < -n or high >= n:
                bad = low if low < -n else high
                raise InputError(f"Gather: index {bad} is outside -{n}..{n - 1}.")
        return (np.asarray(np.take(x, indices, self.axis), x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(0)
        for width in (1, 3, 4, 31, 32, 36, 65):
            x = rng.standard_normal((9, width)).astype(np.float32)
            yield Sample(cls(), (x, rng.integers(-9, 9, (2, 3))))
            yield Sample(cls(1), (x, rng.integers(0, width, 5).astype(np.int32)))
        x = rng.standard_normal((3, 4, 8)).astype(np.float32)
        for axis in (0, 1, 2, -2):
            yield Sample(cls(axis), (x, rng.integers(-3, 3, (2, 2)).astype(np.int32)))
        yield Sample(cls(1), (x, np.array(2)))
        yield Sample(cls(1), (x, np.zeros((0, 2), np.int64)))
        yield Sample(cls(), (np.zeros((4, 0), np.float32), np.array([1])))
        for dtype in (np.int64, np.bool_, np.float16, np.uint8):
            yield Sample(cls(), (rng.integers(0, 2, (5, 16)).astype(dtype), np.array([3, -1])))
            yield Sample(cls(), (rng.integers(0, 2, (5, 3)).astype(dtype), np.array([3, -1])))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        yield Sample(cls(2), (np.zeros((2, 3), np.float32), np.array([0]))), ShapeError
        yield Sample(cls(), (np.zeros((), np.float32), np.array([0]))), ShapeError
