"""Softmax and LogSoftmax along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.ir.cl_code import Code, Define
from clrt.ir.dtypes import WIDENED_STORAGES, DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.axis_kernels import launch_columns, launch_lines
from clrt.kernels.cooperative_rows import launch_rows, of_groups
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, reject_but_float32, reject_float64
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import infer_along_axis, normalize_axis
from clrt.ops.gradients.shapes import known_shape
from clrt.ops.registry import register
from clrt.ops.traits import MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

CPU = tuned("softmax_cpu", {"T_VW": (4, 8, 16)}, T_VW=8, T_ROWS=8)
COLUMNS = tuned("softmax_columns", {"T_VW": (4, 8, 16)}, T_VW=8, T_NV=8)
GROUP = of_groups("softmax_group")
_SOURCE = "norm/softmax.cl"


def around_axis(dims: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Returns the number of elements before an axis, along it, and behind it (products of dims).

    Args:
        dims: Shape; () gives (1, 1, 1).
        axis: Axis, counted from the front.
    """
    along = dims[axis] if dims else 1
    return prod(dims[:axis]), along, prod(dims[axis + 1 :])


def _is_last(op: SoftmaxBase, x: Value) -> bool:
    """Returns whether the elements along the softmax axis are contiguous for all shapes of x.

    That holds for the last axis, and with `flatten`.
    """
    return op.flatten or normalize_axis(op.axis, len(x.dims), op) >= len(x.dims) - 1


def split(op: SoftmaxBase, x: Value) -> tuple[int, int, int]:
    """Returns the number of elements of x before the softmax axis, along it, and behind it.

    With `flatten`, the axes from `axis` on count as the axis.
    """
    axis = normalize_axis(op.axis, len(x.dims), op)
    outer, n, step = around_axis(x.dims, axis)
    return (outer, n * step, 1) if op.flatten else (outer, n, step)


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    x = node.arg(0)
    op = node.op_as(SoftmaxBase)
    outer, n, _ = sizes = split(op, x)
    y, log = node.output, int(op.log)
    if not _is_last(op, x):
        return launch_columns(COLUMNS, _SOURCE, x, y, sizes, 4, ctx, LOG=log)
    if not outer * n:
        return []
    tunables = ctx.tunables(CPU)
    kernel = KernelSpec.of(_SOURCE, "softmax_cpu", LOG=log, **tunables)
    groups = ceil_div(outer, tunables["T_ROWS"])
    return [launch(kernel, (groups,), (1,), 4 * outer * n, y=y, x=x, rows=outer, n=n)]


def _reject_group(node: Node, caps: DeviceCaps) -> str | None:
    reason = reject_float64(node, caps)
    return reason or (
        None if _is_last(node.op_as(SoftmaxBase), node.arg(0)) else "not along the last axis"
    )


def _emit_group(node: Node, ctx: Lowering) -> list[Launch]:
    x = node.arg(0)
    rows, n, _ = split(node.op_as(SoftmaxBase), x)
    if not rows * n:
        return []
    args = {"y": node.output, "x": x}
    return launch_rows(GROUP, _SOURCE, rows, n, 4 * rows * n, ctx, args, **_defines(node))


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    x = node.arg(0)
    kernel = KernelSpec.of(_SOURCE, "softmax_any", VW=1, **_defines(node))
    return launch_lines(kernel, x, node.output, split(node.op_as(SoftmaxBase), x), 4)


def _defines(node: Node) -> dict[str, Define]:
    """Returns the macros of the softmax kernels that support any float dtype."""
    dtype = node.arg(0).dtype
    return {
        "DATA_T": dtype.cl,
        "STORAGE": dtype.storage,
        "ACC_T": dtype.compute,
        "LOG": int(node.op_as(SoftmaxBase).log),
        "MATH(name)": Code("d_##name") if dtype is DType.FLOAT64 else Code("c_##name"),
    }


@dataclass(frozen=True)
class SoftmaxBase(Op):
    """Base class of Softmax, LogSoftmax and Hardmax.

    Attributes:
        axis: Axis of the softmax.
        flatten: Whether the axes from `axis` on are flattened to one, as before opset 13.

    Class attributes:
        log: Whether the logarithm of the softmax is computed.
    """

    axis: int = -1
    flatten: bool = False

    log: ClassVar[bool] = False
    supported_storages: ClassVar[frozenset[str] | None] = WIDENED_STORAGES
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    accuracy = Accuracy.TRANSCENDENTAL
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant("cpu", _emit_cpu, reject_but_float32, requires.CPU),
        Variant("group", _emit_group, _reject_group, requires.GPU),
        Variant("any", _emit_any, reject_float64, speed=PlainEfficiency),
    )

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> SoftmaxBase:
        old = node.opset < 13
        return cls(node.attrs.get("axis", 1 if old else -1), old)

    def infer(self, inputs: Types) -> list[TensorType]:
        return infer_along_axis(inputs, self.axis, self)

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        y, rank = node.output, len(known_shape(node.output))
        first = normalize_axis(self.axis, rank, self)
        axes = b.ints(*(range(first, rank) if self.flatten else (first,) if rank else ()))

        def total(value: Value) -> Value:
            return b("ReduceSum", value, axes, keepdims=1, noop_with_empty_axes=1)

        if self.log:
            return [b("Sub", cotangent, b("Mul", b("Exp", y), total(cotangent)))]
        return [b("Mul", y, b("Sub", cotangent, total(b("Mul", cotangent, y))))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        if not x.size:
            return (x,)
        first = normalize_axis(self.axis, x.ndim, self)
        axes = tuple(range(first, x.ndim)) if self.flatten else (first,) if x.ndim else ()
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):
            shifted = wide - wide.max(axis=axes, keepdims=True)
            weights = np.exp(shifted)
            total = weights.sum(axis=axes, keepdims=True)
            y = shifted - np.log(total) if self.log else weights / total
        return (y.astype(x.dtype),)


@register
class Softmax(SoftmaxBase):
    """exp(x - max) / sum along an axis. Source: ONNX Softmax, opset 1 to 13."""


@register
class LogSoftmax(SoftmaxBase):
    """x - max - log(sum) along an axis. Source: ONNX LogSoftmax, opset 1 to 13."""

    log = True
