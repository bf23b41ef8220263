"""CumSum and CumProd: running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.cl_code import Code, Define
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.axis_kernels import launch_lines
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, reject_float64
from clrt.ops.base import Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.movement.common import elements, host_ints
from clrt.ops.norm.softmax import around_axis
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, InputTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

CPU = tuned("cum_cpu", {"T_VW": (4, 8, 16)}, T_VW=8)


class CumulativePartition(Thresholds):
    """Thresholds of the partition of cumulative ops into CPU work-groups."""

    columns: int = tunable(
        1024, "columns", "Maximum per work-group, so that the previous row stays in the cache."
    )
    line: int = tunable(
        16, "columns", "Columns per work-group are a multiple of this: at least a cache line."
    )
    elems: int = tunable(
        4096, "elements", "Target per work-group: shorter outer blocks are combined up to it."
    )

    group: ClassVar = "cum_shares"


def _reject_cpu(node: Node, caps: DeviceCaps) -> str | None:
    dtype = node.output.dtype
    if dtype.compute != dtype.cl:
        return f"for dtypes that are computed as they lie in memory, not {dtype}"
    return reject_float64(node, caps)


def _axis(node: Node) -> int:
    return normalize_axis(
        (host_ints(node, 1) or (0,))[0], len(node.output.dims), node.op_as(Cumulative)
    )


def _sizes(node: Node) -> tuple[int, int, int]:
    """Returns the number of elements of x before the axis in input 1, along it, and behind it."""
    return around_axis(node.output.dims, _axis(node))


def _defines(op: Cumulative) -> dict[str, Define]:
    return {
        "EXCLUSIVE": int(bool(op.exclusive)),
        "REVERSE": int(bool(op.reverse)),
        "START": op.start,
        "JOIN(a, b)": op.join,
    }


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    outer, n, step = _sizes(node)
    if not outer * n * step:
        return []
    x, y = node.arg(0), node.output
    shares = ctx.thresholds(CumulativePartition)
    shared = ceil_div(step, ctx.caps.compute_units)
    columns = clamp(round_up(shared, shares.line), 1, shares.columns)
    blocks = ctx.chunks_per_group(outer, ceil_div(shares.elems, n * min(columns, step)))
    defines = {**_defines(node.op_as(Cumulative)), **ctx.tunables(CPU)}
    types = {"DATA_T": x.dtype.cl, "ACC_T": x.dtype.cl}
    spec = KernelSpec.of("reduce/cum_sum.cl", "cum_cpu", **defines, **types)
    groups = (ceil_div(step, columns), ceil_div(outer, blocks))
    args = {"x": x, "y": y, "outer": outer, "n": n, "step": step}
    more = {"columns": columns, "blocks": blocks}
    return [launch(spec, groups, (1, 1), outer * n * step, **args, **more)]


def _emit_lines(node: Node, ctx: Lowering) -> list[Launch]:
    x = node.arg(0)
    types = {"DATA_T": x.dtype.cl, "STORAGE": x.dtype.storage, "ACC_T": x.dtype.compute}
    kernel = KernelSpec.of(
        "reduce/cum_sum.cl", "cum_sum", VW=1, **types, **_defines(node.op_as(Cumulative))
    )
    return launch_lines(kernel, x, node.output, _sizes(node), 1)


@dataclass(frozen=True)
class Cumulative(Op):
    """Base class of CumSum and CumProd: running results along the axis in input 1.

    Attributes:
        exclusive: 1: the result of a position excludes its own element.
        reverse: 1: accumulation starts from the end of the axis.

    Class attributes:
        start: Result of no elements: 0 for sums, 1 for products.
        join: OpenCL C expression that combines the running result `a` and the next element `b`.

    Numerics: one accumulator of the dtype (float32 for narrower ones), in order; integers wrap.
    """

    exclusive: int = 0
    reverse: int = 0

    start: ClassVar[int] = 0
    join: ClassVar[Code] = Code("((a) + (b))")
    supported_storages = None
    input_traits = InputTraits(required=(1,), plan_time=(1,))
    host_traits = HostTraits(evaluates_dims=True)
    variants = (
        Variant("cpu", _emit_cpu, _reject_cpu, requires.CPU),
        Variant("lines", _emit_lines, reject_float64, speed=PlainEfficiency),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        axis = elements(inputs, 1)
        if x.shape is not None and axis is not None:
            if not x.shape:
                raise ShapeError(f"{self.name}: the input is a scalar; expected rank 1 or more.")
            normalize_axis(int(axis[0]), len(x.shape), self)
        return [TensorType(x.dtype, x.shape)]

    def accumulate(self, x: Array, axis: int) -> Array:
        """Computes inclusive running results by NumPy.

        Args:
            x: float64, integer, or an object array of dims.
            axis: Axis along which to accumulate, from index 0 on.
        """
        raise NotImplementedError(self.name)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, axis = inputs
        assert x is not None and axis is not None
        dtype = x.dtype
        along = int(axis.reshape(-1)[0])
        if self.reverse:
            x = np.flip(x, along)
        if x.dtype != object and not np.issubdtype(x.dtype, np.integer):
            x = x.astype(np.float64)
        sums = self.accumulate(x, along)
        if self.exclusive and x.shape[along]:
            sums = np.roll(sums, 1, along)
            first: list[slice | int] = [slice(None)] * x.ndim
            first[along] = 0
            sums[tuple(first)] = self.start
        if self.reverse:
            sums = np.flip(sums, along)
        return (sums.astype(dtype),)


@register
class CumSum(Cumulative):
    """Running sums along an axis. Source: ONNX CumSum, opset 11 to 14."""

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        return [b(replace(self, reverse=1 - self.reverse), cotangent, node.arg(1))]

    def accumulate(self, x: Array, axis: int) -> Array:
        return np.cumsum(x, axis, x.dtype)


@register
class CumProd(Cumulative):
    """Running products along an axis. Source: ONNX CumProd, opset 26."""

    start = 1
    join = Code("((a) * (b))")

    def accumulate(self, x: Array, axis: int) -> Array:
        return np.cumprod(x, axis, x.dtype)
