"""LayerNormalization, and the base class and kernels that it shares with RMSNormalization."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.cl_code import Define
from clrt.ir.dims import Shape, product, provably_different
from clrt.ir.dtypes import WIDENED_STORAGES, DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.cooperative_rows import launch_rows, of_groups
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.row_norm import RowNorm, norm_flops
from clrt.kernels.spec import KernelSpec, Launch, launch, optional
from clrt.kernels.thresholds import Tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import (
    Lowering,
    Variant,
    reject_but_float32,
    reject_in_float32,
    runs_as,
)
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.gradients.expression import Expression
from clrt.ops.gradients.shapes import known_shape, sum_to
from clrt.ops.registry import register
from clrt.ops.traits import MemoryTraits, OnnxTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

CPU = tuned("layer_normalization_cpu", {"T_VW": (4, 8, 16)}, T_VW=8, T_ROWS=4)
GROUP = of_groups(
    "layer_normalization_group",
    T_HELD=Tunable(8, "elements", "Loads of a work-item in flight before the first is used."),
)
_SOURCE = "norm/layer_normalization.cl"


class Normalization(Op):
    """Base class of LayerNormalization and RMSNormalization.

    Attributes:
        axis: First normalized axis.
        epsilon: Added to the variance or mean square before the root.

    Class attributes:
        rms: Whether rows are divided by their root mean square, without subtracting the mean.
    """

    axis: int
    epsilon: float
    rms: ClassVar[bool] = False
    supported_storages = WIDENED_STORAGES

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        cotangent, *of_stats = cotangents
        if any(c is not None for c in of_stats):
            raise UnsupportedError("only its first output has a gradient")
        assert cotangent is not None
        x, scale, bias = Expression(b, node.arg(0)).widened(), node.arg(1), node.input(2)
        rank = len(known_shape(x.value))
        axes = b.ints(*range(normalize_axis(self.axis, rank, self), rank))

        def mean(values: Expression) -> Expression:
            return Expression(b, b("ReduceMean", values.value, axes, keepdims=1))

        given = Expression(b, cotangent).widened()
        centred = x if self.rms else x - mean(x)
        inverse = 1 / (mean(centred * centred) + self.epsilon).apply("Sqrt")
        unit = centred * inverse
        rows = given * Expression(b, scale).widened()
        by_unit = rows - unit * mean(rows * unit)
        by_x = inverse * (by_unit if self.rms else by_unit - mean(rows))
        results = [by_x.value, sum_to(b, (given * unit).value, scale)]
        if bias is not None:
            results.append(sum_to(b, given.value, bias))
        return [b.cast(r, v.dtype) for r, v in zip(results, node.inputs, strict=False) if v]

    def row(self, shape: Shape) -> Shape:
        """Returns the sizes of the normalized axes, the last dims of x from `axis` on.

        Args:
            shape: Shape of x.
        """
        return shape[normalize_axis(self.axis, len(shape), self) :]


def is_row(shape: Shape, row: Shape) -> bool:
    """Returns whether a scale or bias has the shape of the normalized axes.

    Args:
        shape: Shape of the scale or bias; leading 1s are ignored.
        row: Sizes of the normalized axes.
    """
    rank = max(len(shape), len(row))
    left, right = ((*(1,) * (rank - len(s)), *s) for s in (shape, row))
    return left == right


def _rows(node: Node) -> tuple[int, int]:
    """Returns the number of rows of x, and the number of elements per row."""
    dims = node.arg(0).dims
    op = node.op_as(Normalization)
    axis = normalize_axis(op.axis, len(dims), op)
    return prod(dims[:axis]), prod(dims[axis:])


def _reject_any(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why no kernel applies to a Normalization node; None if one does.

    The scale and bias must have the dtype of x, and the shape of the normalized axes.
    """
    x = node.arg(0)
    if reason := reject_in_float32(node, caps):
        return reason
    row = node.op_as(Normalization).row(x.dims)
    for value in node.inputs[1:]:
        if value is not None and not is_row(value.dims, row):
            return f"the scale or bias {value.type} is no row of the {row} normalised elements"
        if value is not None and value.dtype is not x.dtype:
            return f"{value.type} beside {x.type}"
    return None


def _reject_cpu(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why the CPU vector kernel does not apply to a Normalization node; None if it does."""
    return reject_but_float32(node, caps) or _reject_any(node, caps)


@dataclass(frozen=True)
class _NormalizedRows:
    """Rows of a Normalization node, with the arguments and macros of its kernels.

    Attributes:
        rows: Number of rows.
        n: Elements per row.
        none: Whether all outputs are empty, so that no launch is needed.
        args: Kernel arguments of tensors and epsilon.
        defines: Macros that all kernels share.
    """

    rows: int
    n: int
    none: bool
    args: dict[str, Any]
    defines: dict[str, Define]

    @classmethod
    def of(cls, node: Node) -> _NormalizedRows:
        op, bias, stats = node.op_as(Normalization), node.input(2), node.outputs[1:]
        rows, n = _rows(node)
        defines = {"RMS": int(op.rms), "BIAS": int(bias is not None), "STATS": len(stats)}
        args: dict[str, Any] = dict(x=node.arg(0), scale=node.arg(1), **optional(bias=bias))
        args |= zip(("y", "mean_out", "inverse_out"), node.outputs, strict=False)
        args["epsilon"] = op.epsilon
        return cls(rows, n, rows == 0 or (n == 0 and not stats), args, dict(defines))

    @property
    def flops(self) -> int:
        return norm_flops(self.rows, self.n)


def row_norm(node: Node, caps: DeviceCaps) -> RowNorm:
    """Returns a Normalization node as a `RowNorm`, for launches that also compute the rows.

    Raises:
        UnsupportedError: The node normalizes several axes, has statistics as outputs, reads x also
            as its scale or bias, or does not run by the CPU kernel.
    """
    op, x = node.op_as(Normalization), node.arg(0)
    runs_as("cpu", op.variants, node, caps)
    if normalize_axis(op.axis, len(x.dims), op) != len(x.dims) - 1:
        raise UnsupportedError(f"{node} goes over more than the last axis")
    if len(node.outputs) > 1:
        raise UnsupportedError(f"{node} gives the statistics, too")
    if x in node.inputs[1:]:
        raise UnsupportedError(f"{node} is scaled by its input")
    return RowNorm(node.output, node.arg(1), node.input(2), op.epsilon, op.rms)


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    view = _NormalizedRows.of(node)
    if view.none:
        return []
    tunables = ctx.tunables(CPU)
    kernel = KernelSpec.of(_SOURCE, CPU.entry, **(view.defines | tunables))
    groups = ceil_div(view.rows, tunables["T_ROWS"])
    return [launch(kernel, (groups,), (1,), view.flops, **view.args, rows=view.rows, n=view.n)]


def _emit_group(node: Node, ctx: Lowering) -> list[Launch]:
    view = _NormalizedRows.of(node)
    if view.none:
        return []
    rows, defines = (view.rows, view.n, view.flops), view.defines | _types(node)
    return launch_rows(GROUP, _SOURCE, *rows, ctx, view.args, _group_factor(node), **defines)


def _group_factor(node: Node) -> int:
    """Returns the factor by which work-groups are enlarged for long rows.

    The factor is 4 from 4096 elements per row on, 2 from 2048 on, else 1: a single long row is
    bound by the latency of the sequential reads of each work-item. Symbolic row lengths give 1, so
    that all calls use the same kernel.
    """
    x = node.arg(0)
    row = node.op_as(Normalization).row(x.symbolic_shape or x.dims)
    n = prod(d if isinstance(d, int) else 0 for d in row)
    return 4 if n >= 4096 else 2 if n >= 2048 else 1


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    view = _NormalizedRows.of(node)
    if view.none:
        return []
    defines = view.defines | _types(node)
    kernel = KernelSpec.of(_SOURCE, "layer_normalization_any", VW=1, **defines)
    return [launch(kernel, (view.rows,), None, view.flops, **view.args, rows=view.rows, n=view.n)]


def _types(node: Node) -> dict[str, Define]:
    dtype = node.arg(0).dtype
    return {"DATA_T": dtype.cl, "STORAGE": dtype.storage}


VARIANTS = (
    Variant("cpu", _emit_cpu, _reject_cpu, requires.CPU),
    Variant("group", _emit_group, _reject_any, requires.GPU),
    Variant("any", _emit_any, _reject_any, speed=PlainEfficiency),
)


def check_stash_type(node: OnnxNode) -> None:
    """Checks that an ONNX node asks for statistics in float32.

    Raises:
        UnsupportedError: stash_type is not float32.
    """
    if node.attrs.get("stash_type", 1) != 1:
        raise UnsupportedError(
            f"{node.op_type} '{node.name}': stash_type {node.attrs['stash_type']} is not "
            "supported; clrt keeps statistics in float32 (1)."
        )


@register
@dataclass(frozen=True)
class LayerNormalization(Normalization):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the axes from `axis` on.

    Attributes:
        stats: Whether the node also has the outputs Mean and InvStdDev.

    Numerics: two passes in float32 (mean, then mean of squared deviations). The mean is accurate
    for all finite numbers; if the variance overflows, the normalized elements are 0, as in ONNX.
    Source: ONNX LayerNormalization, opset 17, with stash_type float32.
    """

    axis: int = -1
    epsilon: float = 1e-5
    stats: bool = False

    onnx_traits = OnnxTraits(non_attribute_fields=frozenset({"stats"}))
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    accuracy = Accuracy.ACCUMULATED
    variants = VARIANTS

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> LayerNormalization:
        check_stash_type(node)
        axis, epsilon = node.attrs.get("axis", -1), node.attrs.get("epsilon", 1e-5)
        return cls(axis, epsilon, any(node.outputs[1:]))

    def infer(self, inputs: Types) -> list[TensorType]:
        x, scale = need(inputs, 0, self), need(inputs, 1, self)
        if x.shape is None:
            stats = [TensorType(DType.FLOAT32, None)] * 2
            return [TensorType(x.dtype, None), *(stats if self.stats else [])]
        axis = normalize_axis(self.axis, len(x.shape), self)
        for affine in (scale, *inputs[2:]):
            if affine is not None:
                check_affine(self, x, affine, axis)
        stats_shape = (*x.shape[:axis], *[1] * (len(x.shape) - axis))
        stats = [TensorType(DType.FLOAT32, stats_shape)] * 2
        return [TensorType(x.dtype, x.shape), *(stats if self.stats else [])]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale, *rest = inputs
        assert x is not None and scale is not None
        axis = normalize_axis(self.axis, x.ndim, self)
        axes = tuple(range(axis, x.ndim))
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):
            mean = wide.mean(axis=axes, keepdims=True)
            centred = wide - mean
            inverse = 1 / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + self.epsilon)
            y = centred * inverse * scale.astype(np.float64)
            if rest and rest[0] is not None:
                y = y + rest[0].astype(np.float64)
        stats = (mean.astype(np.float32), inverse.astype(np.float32))
        return (y.astype(x.dtype), *(stats if self.stats else ()))


def check_affine(op: Op, x: TensorType, scale: TensorType, axis: int) -> None:
    """Checks that a scale or bias broadcasts to x.

    Args:
        op: Op, named in the message.
        x: Type of x.
        scale: Type of the scale or bias.
        axis: First normalized axis, for the message.

    Raises:
        ShapeError: A dim is neither 1 nor that of x, or the rank exceeds that of x.
    """
    assert x.shape is not None
    if scale.shape is None:
        return
    pairs = zip(reversed(x.shape), reversed(scale.shape), strict=False)
    wrong = any(
        provably_different(dim, x_dim) and provably_different(dim, 1) for x_dim, dim in pairs
    )
    if wrong or len(scale.shape) > len(x.shape):
        size = product(x.shape[axis:])
        raise ShapeError(
            f"{op.name}: the scale or bias {scale} does not fit x {x} from axis {axis} on "
            f"({size} elements)."
        )
