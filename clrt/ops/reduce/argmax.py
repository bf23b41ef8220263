"""ArgMax and ArgMin: the index of the largest or smallest element along an axis."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.cl_code import Code, Define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.axis_kernels import launch_columns, launch_lines
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, reject_but_float32, reject_float64
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.norm.softmax import around_axis
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

ROWS = tuned("argmax_rows", {"T_VW": (4, 8, 16)}, T_VW=8)
COLUMNS = tuned("argmax_columns", {"T_VW": (4, 8, 16)}, T_VW=8, T_NV=8)
_SOURCE = "reduce/argmax.cl"


class ArgMaxPartition(Thresholds):
    """Threshold of the partition of ArgMax over rows into CPU work-groups."""

    rows: int = tunable(64, "rows", "Maximum per work-group, to amortize its start.")

    group: ClassVar = "argmax_shares"


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    return "no kernel for bool" if node.arg(0).dtype is DType.BOOL else reject_float64(node, caps)


def _sizes(node: Node) -> tuple[int, int, int]:
    """Returns the number of elements of x before the searched axis, along the axis, and behind it.

    Raises:
        ShapeError: The axis has no elements.
    """
    x, op = node.arg(0), node.op_as(ArgExtremum)
    outer, n, step = around_axis(x.dims, normalize_axis(op.axis, len(x.dims), op))
    if not n:
        raise ShapeError(f"{op.name} '{node.name}': axis {op.axis} of {x.type} has no elements.")
    return outer, n, step


_BETTER = Code("((a) {}{} (b))")


def _better(node: Node) -> dict[str, Define]:
    """Returns the macros that compare elements and select among equal ones."""
    op = node.op_as(ArgExtremum)
    last = int(op.select_last_index)
    return {
        "LAST": last,
        "BETTER(a, b)": _BETTER.substitute(op.better, Code("=") if last else Code("")),
    }


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    if 0 in node.output.dims:
        return []
    outer, n, _ = sizes = _sizes(node)
    op = node.op_as(ArgExtremum)
    x, y, rank = node.arg(0), node.output, len(node.arg(0).dims)
    if rank and normalize_axis(op.axis, rank, op) < rank - 1:
        return launch_columns(COLUMNS, _SOURCE, x, y, sizes, 1, ctx, **_better(node))
    rows = ctx.chunks_per_group(outer, ctx.thresholds(ArgMaxPartition).rows)
    kernel = KernelSpec.of(_SOURCE, ROWS.entry, **ctx.tunables(ROWS), **_better(node))
    args = dict(y=y, x=x, outer=outer, n=n, rows=rows)
    return [launch(kernel, (ceil_div(outer, rows),), (1,), outer * n, **args)]


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    if 0 in node.output.dims:
        return []
    dtype = node.arg(0).dtype
    kernel = KernelSpec.of(
        _SOURCE,
        "argmax",
        VW=1,
        DATA_T=dtype.cl,
        STORAGE=dtype.storage,
        VALUE_T=dtype.compute,
        IS_FLOAT=int(dtype.is_float),
        **_better(node),
    )
    return launch_lines(kernel, node.arg(0), node.output, _sizes(node), 1)


@dataclass(frozen=True)
class ArgExtremum(Op):
    """Base class of ArgMax and ArgMin; NaN counts as the best element.

    Attributes:
        axis: Axis of the search.
        keepdims: Whether the axis stays, with size 1.
        select_last_index: Whether the last of equal elements is returned, else the first.

    Class attributes:
        better: OpenCL C operator that tells whether an element is better than another.
    """

    axis: int = 0
    keepdims: bool = True
    select_last_index: bool = False

    better: ClassVar[Code] = Code(">")
    accuracy = Accuracy.EXACT
    variants = (
        Variant("cpu", _emit_cpu, reject_but_float32, requires.CPU),
        Variant("any", _emit_any, _reject, speed=PlainEfficiency),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(DType.INT64, None)]
        axis = normalize_axis(self.axis, len(x.shape), self)
        one = (1,) if self.keepdims else ()
        if not x.shape:
            return [TensorType(DType.INT64, ())]
        return [TensorType(DType.INT64, (*x.shape[:axis], *one, *x.shape[axis + 1 :]))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        if not x.ndim:
            return (np.zeros((), np.int64),)
        axis = normalize_axis(self.axis, x.ndim, self)
        find = np.argmax if self.better == ">" else np.argmin
        if self.select_last_index:
            indices = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis)
        else:
            indices = find(x, axis=axis)
        indices = np.asarray(indices, np.int64)
        return (np.expand_dims(indices, axis) if self.keepdims else indices,)


@register
class ArgMax(ArgExtremum):
    """The index of the largest element along an axis. Source: ONNX ArgMax, opset 1 to 13."""


@register
class ArgMin(ArgExtremum):
    """The index of the smallest element along an axis. Source: ONNX ArgMin, opset 1 to 13."""

    better = Code("<")
