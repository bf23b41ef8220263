"""Launches that resample axes of a tensor by tables, as used by Resize."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, ClassVar

from clrt.ir.cl_code import Code, Define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import TensorType
from clrt.kernels.resample_tables import SamplingRule, sampling_table
from clrt.kernels.spec import Buffer, KernelSpec, Launch, launch, pitched_args
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering
from clrt.ops.vision.resample import AxisSampling
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div


class ResamplePartition(Thresholds):
    """Thresholds of the partition of resampling into CPU work-items."""

    elems: int = tunable(
        16384,
        "output elements",
        "Maximum per work-item that resamples one axis, to amortize its start.",
    )
    items: int = tunable(
        8,
        "work-items per core",
        "Maximum if two axes are resampled at once: each needs scratch memory of its own.",
    )

    group: ClassVar = "resample_shares"


def sample_launches(
    x: Value, y: Value, samplings: Sequence[AxisSampling], ctx: Lowering
) -> list[Launch]:
    """Returns the launches that resample x to y, one per axis.

    On CPUs the last two axes share a launch if the last one is resampled.

    Args:
        x: Input.
        y: Output.
        samplings: Resampled axes in processing order; empty if y is a copy of x.
        ctx: Lowering context.
    """
    rank, dims = len(x.dims), list(x.dims)
    samplings = samplings or [same_axis(0, *x.dims[:1])]
    copies = all(s.is_copy for s in samplings)
    planes = []
    if ctx.caps.is_cpu and any(s.axis == rank - 1 for s in samplings):
        planes = [s for s in samplings if s.axis >= rank - 2]
    steps = [[s] for s in samplings if s not in planes] + [planes] * bool(planes)
    launches: list[Launch] = []
    source: Buffer = x
    dtype = x.dtype
    for step in steps:
        before = tuple(dims)
        for sampling in step:
            dims[sampling.axis] = sampling.outputs
        last = step is steps[-1]
        out_dtype = y.dtype if last or copies else DType.FLOAT32
        target = y if last else ctx.scratch(prod(dims), out_dtype)
        rounding = (
            Code("(v)")
            if out_dtype.is_float
            else Code("convert_{}_sat_rte(v)").substitute(out_dtype.cl)
        )
        macros: dict[str, Define] = dict(DATA_T=dtype.cl, STORAGE=dtype.storage)
        macros |= {"OUT_T": out_dtype.cl, "OUT_STORAGE": out_dtype.storage, "ROUND(v)": rounding}
        if copies:
            macros = dict(DATA_T=dtype.cl_bits)
        macros |= dict(COPY=int(copies), CPU=int(ctx.caps.is_cpu))
        sample = _sample_planes if step is planes else _sample_axis
        launches.append(sample(_Resampled(source, target, before, step, macros), ctx))
        source, dtype = target, out_dtype
    return launches


def same_axis(axis: int, size: int = 1) -> AxisSampling:
    """Returns an AxisSampling that copies an axis of `size` elements unchanged."""
    return AxisSampling(axis, size, size, 1, False, SamplingRule())


@dataclass(frozen=True)
class _Resampled:
    """Parameters of one launch, which resamples tensor x to y.

    Attributes:
        x: Input buffer.
        y: Output buffer.
        dims: Shape of x.
        step: Resampled axes: one, or the last two.
        macros: Macros of dtypes and rounding.
    """

    x: Buffer
    y: Buffer
    dims: Sequence[int]
    step: Sequence[AxisSampling]
    macros: dict[str, Define]


def _sample_axis(resampled: _Resampled, ctx: Lowering) -> Launch:
    """Returns the launch that resamples one axis of a tensor."""
    x, y, dims, (sampling,), macros = (
        resampled.x,
        resampled.y,
        resampled.dims,
        resampled.step,
        resampled.macros,
    )
    outputs, taps = sampling.outputs, sampling.taps
    inner, outer = prod(dims[sampling.axis + 1 :]), prod(dims[: sampling.axis])
    args: dict[str, Any] = dict(size=sampling.size, outputs=outputs, inner=inner)
    args |= pitched_args("y", y, inner) | pitched_args("x", x, inner)
    args |= dict(rows=outer * outputs, indices=_table(sampling, "indices"))
    copies = macros["COPY"]
    if not copies:
        args |= dict(weights=_table(sampling, "weights"), taps=taps)
        if sampling.extrapolates:
            args["values"] = _table(sampling, "values")
    extrapolate = int(sampling.extrapolates)
    entry = "resize_copy" if copies else "resize"
    kernel = KernelSpec.of("vision/resize.cl", entry, EXTRAPOLATE=extrapolate, **macros)
    grid: tuple[int, ...] = (outputs * inner, outer)
    local, args["share"] = None, 1
    if ctx.caps.is_cpu:
        args["share"] = ctx.chunks_per_group(
            outer * outputs * inner, ctx.thresholds(ResamplePartition).elems
        )
        grid, local = (ceil_div(outer * outputs * inner, args["share"]),), (1,)
    return launch(kernel, grid, local, 2 * outer * outputs * inner * taps, **args)


def _sample_planes(resampled: _Resampled, ctx: Lowering) -> Launch:
    """Returns the CPU launch that resamples the last two axes of a tensor at once.

    The axis before the last may be copied instead of resampled.
    """
    x, y, dims, step, macros = (
        resampled.x,
        resampled.y,
        resampled.dims,
        resampled.step,
        resampled.macros,
    )
    rank = len(dims)
    axes = {s.axis: s for s in step}
    size, width = dims[-2] if rank > 1 else 1, dims[-1]
    down, across = axes.get(rank - 2, same_axis(rank - 2, size)), axes[rank - 1]
    outputs_down, outputs = down.outputs, across.outputs
    rows = prod(dims[:-2]) * outputs_down
    items = ctx.caps.compute_units * ctx.thresholds(ResamplePartition).items
    height = ceil_div(rows, items)
    args: dict[str, Any] = dict(x=x, y=y, rows=rows, height=height, size=size, width=width)
    args |= dict(outputs_down=outputs_down, outputs=outputs)
    args |= dict(down=_table(down, "indices"), across=_table(across, "indices", by_taps=True))
    groups = ceil_div(rows, height)
    if not macros["COPY"]:
        args["lines"] = ctx.scratch(groups * width)
        for name, sampling in (("down", down), ("across", across)):
            by_taps = sampling is across
            args[f"{name}_weights"] = _table(sampling, "weights", by_taps)
            args[f"{name}_taps"] = sampling.taps
            args[f"{name}_values"] = _table(sampling, "values")
    entry = "resize_planes_copy" if macros["COPY"] else "resize_planes"
    kernel = KernelSpec.of("vision/resize.cl", entry, EXTRAPOLATE=0, **macros)
    taps = down.taps * width + across.taps * outputs
    return launch(kernel, (groups,), (1,), 2 * rows * taps, **args)


def _table(sampling: AxisSampling, kind: str, by_taps: bool = False) -> Value:
    """Returns one field of an axis' `SamplingTables` as a constant of the plan.

    Missing `values` are zeros.

    Args:
        sampling: Resampled axis.
        kind: Name of the field: indices, weights or values.
        by_taps: Whether to transpose to `[taps, outputs]`.
    """
    dtype = DType.INT32 if kind == "indices" else DType.FLOAT32

    rule = sampling.rule.constants
    make = partial(sampling_table, kind=kind, by_taps=by_taps, **rule)
    shape = (sampling.outputs,) if kind == "values" else (sampling.outputs, sampling.taps)
    shape = shape[::-1] if by_taps else shape
    sizes = sampling.size, sampling.outputs
    return Value(kind, TensorType.derived(dtype, shape, sizes, make))
