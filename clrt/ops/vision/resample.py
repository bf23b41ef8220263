"""Axes sampled by tables: those of Resize, and what runs them where they are made between plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array
from clrt.ops.base import HostContext, RuntimeValue, Tensor
from clrt.ops.control.host_driven import dtype_of
from clrt.ops.movement.common import fresh_dims
from clrt.ops.movement.gather import Gather
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Add, Mul, Round
from clrt.ops.pointwise.variadic import Clip
from clrt.ops.reduce.reduce import ReduceSum


@dataclass(frozen=True)
class SamplingTables:
    """What the outputs along an axis are made of.

    Attributes:
        indices: `[outputs, taps]`, the elements that each output is made of.
        weights: `[outputs, taps]`, their shares.
        values: `[outputs]`, what is added where an output lies outside; None where none does.
    """

    indices: Array
    weights: Array
    values: Array | None


@dataclass(frozen=True)
class AxisSampling:
    """How one axis is sampled.

    Attributes:
        size: Of the axis.
        outputs: How many elements it has then.
        taps: How many elements each of these is made of.
        extrapolates: Whether some lie outside.
        make: The tables of a size and a number of outputs.
    """

    axis: int
    size: int
    outputs: int
    taps: int
    extrapolates: bool
    make: Callable[[int, int], SamplingTables]

    @property
    def is_copy(self) -> bool:
        """Whether each output is one element."""
        return self.taps == 1 and not self.extrapolates

    @property
    def tables(self) -> SamplingTables:
        """The tables, where sizes are not traced."""
        return self.make(self.size, self.outputs)


def sample(x: Tensor, samplings: Sequence[AxisSampling], host: HostContext) -> RuntimeValue:
    """x sampled along axes, one after the other.

    The tables are no part of the plan, which so serves others as well.
    """
    dtype, rank, axes = dtype_of(x), len(x.shape), tuple(s.axis for s in samplings)
    copies = all(s.is_copy for s in samplings)
    if copies:
        rows = [s.tables.indices[:, 0] for s in samplings]
        return host.run(_sampled(dtype, rank, axes, copies), [x, *rows])[0]
    wide = _wide(dtype).numpy
    tables: list[Array] = []
    for s in samplings:
        made, after = s.tables, (1,) * (rank - s.axis - 1)
        values = np.zeros(s.outputs) if made.values is None else made.values
        weights = made.weights.reshape(*made.weights.shape, *after).astype(wide)
        tables += [made.indices, weights, values.reshape(-1, *after).astype(wide)]
    return host.run(_sampled(dtype, rank, axes, copies), [x, *tables])[0]


def _wide(dtype: DType) -> DType:
    return dtype if dtype is DType.FLOAT64 else DType.FLOAT32


@lru_cache(maxsize=256)
def _sampled(dtype: DType, rank: int, axes: tuple[int, ...], copies: bool) -> Graph:
    """The graph of `sample`, kept so that its plans are."""
    build = Builder()
    add = build.add

    def table(kind: str, of: DType, rank: int) -> Value:
        inputs.append(build.input(f"{kind}{len(inputs)}", of, fresh_dims(rank)))
        return inputs[-1]

    inputs = [build.input("x", dtype, fresh_dims(rank))]
    wide, y = _wide(dtype), inputs[0]
    if not copies and dtype is not wide:
        y = add(Cast(wide), y)
    for axis in axes:
        if copies:
            y = add(Gather(axis), y, table("indices", DType.INT64, 1))
            continue
        taps = add(Gather(axis), y, table("indices", DType.INT64, 2))
        parts = add(Mul(), taps, table("weights", wide, rank - axis + 1))
        y = add(ReduceSum(keepdims=False), parts, build.ints(axis + 1))
        y = add(Add(), y, table("values", wide, rank - axis))
    if y.dtype is not dtype:
        if dtype.is_int:
            y = add(Clip(), add(Round(), y), *map(build.constant, _bounds(dtype)))
        y = add(Cast(dtype), y)
    return build.graph("sample", inputs, [y])


def _bounds(dtype: DType) -> list[Array]:
    """The least and the largest float32 that the integers have."""
    info = np.iinfo(dtype.value)
    bounds = []
    for end in (info.min, info.max):
        bound = np.float32(end)
        inside = bound if info.min <= int(bound) <= info.max else np.nextafter(bound, np.float32(0))
        bounds.append(np.asarray(inside))
    return bounds
