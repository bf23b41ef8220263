"""clrt.Lookup: elements through a table; LabelEncoder and its relatives expand to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, Lowering, Variant, i32
from clrt.ops.base import Accuracy, Op, Sample, Types, need, register
from clrt.ops.movement import count


def _misfit(node: Node, caps: DeviceCaps) -> str | None:
    dtype = node.arg(0).dtype
    if DType.STRING in (dtype, node.output.dtype):
        return "text stays on the host"
    if dtype.storage != "plain" or (dtype is DType.FLOAT64 and not caps.has_fp64):
        return f"no kernel compares {dtype}"
    return None


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, keys, y = node.arg(0), node.arg(1), node.output
    elems = count(x.dims)
    if not elems:
        return []
    kernel = KernelSpec.of("lookup.cl", "lookup", DATA_T=x.dtype.cl, VALUE_T=y.dtype.cl_bits)
    buffers = (BufferArg(x), BufferArg(keys), BufferArg(node.arg(2)), BufferArg(node.arg(3)))
    args = (*buffers, BufferArg(y), i32(elems), i32(keys.dims[0]))
    return [Launch(kernel, (elems,), None, args)]


@register
@dataclass(frozen=True)
class Lookup(Op):
    """values[k] where x equals keys[k], the default where it equals none.

    Inputs: x, keys [k] in ascending order (NaN last; it equals NaN), values [k], default [1].
    """

    domain = "clrt"
    accuracy = Accuracy.EXACT
    alike = ((0, 1), (2, 3))
    variants = (Variant("search", _emit, _misfit),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, keys, values, default = (need(inputs, i, self) for i in range(4))
        if x.dtype is not keys.dtype or values.dtype is not default.dtype:
            raise ShapeError(
                f"Lookup: x is {x}, keys are {keys}, values {values}, the default {default}."
            )
        table = TensorType(values.dtype, keys.shape), TensorType(values.dtype, (1,))
        if keys.rank not in (1, None) or not (values.agrees(table[0]) and default.agrees(table[1])):
            raise ShapeError(f"Lookup: {keys}, {values} and {default} are no table.")
        return [TensorType(values.dtype, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, keys, values, default = inputs
        assert x is not None and keys is not None and values is not None and default is not None
        if not len(keys):
            return (np.full(x.shape, default.reshape(-1)[0]),)
        place = np.minimum(np.searchsorted(keys, x), len(keys) - 1)
        found = keys[place] == x
        if x.dtype.kind == "f":
            found |= np.isnan(keys[place]) & np.isnan(x)
        return (np.where(found, values[place], default.reshape(-1)[0]),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(17)
        for dtype in (np.int64, np.int32, np.int16, np.float32):
            for size in (1, 6, 7):
                keys = np.sort(rng.choice(9, size, replace=False)).astype(dtype)
                values = rng.standard_normal(size).astype(np.float32)
                x = rng.integers(-1, 10, (3, 5)).astype(dtype)
                yield Sample(cls(), (x, keys, values, np.array([-1], np.float32)))
        keys = np.array([-np.inf, 0, 1.5, np.nan], np.float32)
        x = np.array([np.nan, -0.0, 1.5, np.inf, -np.inf], np.float32)
        yield Sample(cls(), (x, keys, np.arange(4), np.array([9])))
        yield Sample(cls(), (x[:0], keys, np.arange(4), np.array([9])))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        x = np.zeros(2, np.float32)
        yield Sample(cls(), (x, np.arange(2), np.arange(2), np.array([0]))), ShapeError
        yield Sample(cls(), (x, x, np.arange(1), np.array([0]))), ShapeError
        yield Sample(cls(), (x, x, np.arange(2), np.zeros(0, np.int64))), ShapeError
        yield Sample(cls(), (x, x, np.arange(2), x[:1])), ShapeError
