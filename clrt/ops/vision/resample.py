"""Separable resampling by index and weight tables, as in Resize, and its host-driven form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array
from clrt.ir.runtime_values import RuntimeValue, Tensor
from clrt.kernels.resample_tables import SamplingRule, SamplingTables
from clrt.ops.base import HostContext
from clrt.ops.control.host_driven import dtype_of
from clrt.ops.movement.common import fresh_dims
from clrt.ops.movement.gather import Gather
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Add, Mul, Round
from clrt.ops.pointwise.variadic import Clip
from clrt.ops.reduce.reduce import ReduceSum
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class AxisSampling:
    """Resampling of one axis of a tensor.

    Attributes:
        axis: Resampled axis.
        size: Number of elements along the axis in the source.
        outputs: Number of elements along the axis in the output.
        taps: Number of source elements per output element.
        extrapolates: Whether some output elements are outside the source.
        rule: Rule by which the axis is resampled at any size.
    """

    axis: int
    size: int
    outputs: int
    taps: int
    extrapolates: bool
    rule: SamplingRule

    @property
    def is_copy(self) -> bool:
        """Whether each output element is a copy of one source element."""
        return self.taps == 1 and not self.extrapolates

    @property
    def tables(self) -> SamplingTables:
        """Indices, weights and added values of this axis.

        `size` and `outputs` must be ints, not traced.
        """
        return self.rule.tables(self.size, self.outputs)


def sample(x: Tensor, samplings: Sequence[AxisSampling], host: HostContext) -> RuntimeValue:
    """Resamples x along several axes, one after another, by a plan on the device.

    Indices and weights are inputs of the plan, so one plan serves all tables.

    Args:
        x: Tensor on host or device.
        samplings: Resampled axes, in processing order; at least one.
        host: Runs the graph.
    """
    dtype, rank, axes = dtype_of(x), len(x.shape), tuple(s.axis for s in samplings)
    copies = all(s.is_copy for s in samplings)
    if copies:
        rows = [s.tables.indices[:, 0] for s in samplings]
        return host.run(_sample_graph(dtype, rank, axes, copies), [x, *rows])[0]
    wide = _compute_dtype(dtype).numpy
    tables: list[Array] = []
    for s in samplings:
        tables_of_axis, after = s.tables, (1,) * (rank - s.axis - 1)
        values = np.zeros(s.outputs) if tables_of_axis.values is None else tables_of_axis.values
        weights = tables_of_axis.weights.reshape(*tables_of_axis.weights.shape, *after).astype(wide)
        tables += [tables_of_axis.indices, weights, values.reshape(-1, *after).astype(wide)]
    return host.run(_sample_graph(dtype, rank, axes, copies), [x, *tables])[0]


def _compute_dtype(dtype: DType) -> DType:
    """Returns the dtype that resampling computes in: float64 for float64, else float32."""
    return dtype if dtype is DType.FLOAT64 else DType.FLOAT32


@lru_cache(maxsize=256)
def _sample_graph(dtype: DType, rank: int, axes: tuple[int, ...], copies: bool) -> Graph:
    """Returns the graph that resamples x along `axes`; cached, so that its plans are reused.

    The graph's inputs are x, then per axis: indices, weights and added values, as in
    `SamplingTables`; only indices if `copies`.

    Args:
        dtype: Dtype of x.
        rank: Rank of x.
        axes: Resampled axes, in processing order.
        copies: Whether each output element is a copy of one source element on all axes.
    """
    build = Builder()
    add = build.add

    def table(kind: str, of: DType, rank: int) -> Value:
        inputs.append(build.input(f"{kind}{len(inputs)}", of, fresh_dims(rank)))
        return inputs[-1]

    inputs = [build.input("x", dtype, fresh_dims(rank))]
    wide, y = _compute_dtype(dtype), inputs[0]
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
    """Returns the smallest and the largest float32 within the range of an integer dtype."""
    info = np.iinfo(dtype.value)
    bounds = []
    for end in (info.min, info.max):
        bound = np.float32(end)
        inside = bound if info.min <= int(bound) <= info.max else np.nextafter(bound, np.float32(0))
        bounds.append(np.asarray(inside))
    return bounds
