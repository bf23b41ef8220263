"""Convolution of channels-last images of 8-bit integers, requantized to 8-bit integers."""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import Any, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.gemm_int8_cpu import (
    MAX_ROWS,
    WIDTH,
    pack_panels,
    partition,
    record_bytes,
    unsigned,
)
from clrt.kernels.spec import KernelSpec, Launch, PackedWeight, launch
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Types
from clrt.ops.checks import need
from clrt.ops.conv.channels_last import (
    MAX_DEPTHWISE_TAPS,
    ChannelsLastPartition,
    first_array,
    first_type,
    last_type,
)
from clrt.ops.conv.conv import Convolution, window_of
from clrt.ops.matmul.matmul_integer import BYTES
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

CONV_BYTES = tuned("conv_bytes_cpu", {"T_VW": (8, 16)}, T_VW=16)
DEPTHWISE_BYTES = tuned(
    "depthwise_bytes_cpu", {"T_MR": (2, 4, 6, 8), "T_VW": (4, 8, 16)}, T_MR=4, T_VW=16
)
_AXES = 3
# Neighbors along a window's run of elements that one dot-product instruction multiplies.
_DOT_DEPTH = 4
# Maximum work-groups per core: each has scratch memory for the windows of a block.
_GROUPS_PER_CORE = 4


def _args(node: Node) -> dict[str, Any]:
    """Returns the arguments that all kernels of the op share, by name."""
    x, y, op = node.arg(0), node.output, node.op_as(ChannelsLastQuantizedConv)
    if len(x.dims) - 2 > _AXES:
        raise UnsupportedError(f"{len(x.dims) - 2} spatial axes; the kernel walks up to {_AXES}")
    geometry = window_of(node).geometry(x.dims[1:-1], y.dims[1:-1])
    low, high = float(op.low - op.y_zero), float(op.high - op.y_zero)
    return {"y": y, "x": x, **geometry, "zero": op.y_zero, "low": low, "high": high}


def _flops(node: Node) -> int:
    return 2 * prod(node.output.dims) * prod(node.arg(1).dims[1:])


def _numbers(node: Node, index: int) -> Array:
    numbers = node.arg(index).numbers
    assert numbers is not None
    return numbers


def _layout(name: str, node: Node, nbytes: int, pack: Any) -> PackedWeight:
    """Returns the weights with zero points, biases and factors, packed by `pack`."""
    about = ":".join(node.arg(i).name for i in (2, 3, 4))
    return PackedWeight(node.arg(1), f"{name}:{about}", pack, nbytes)


def _groups_per_panel(groups: int, maps: int) -> int:
    """Returns how many groups of a convolution become one, whose output channels fit one panel.

    In it an output channel has zero weights for input channels of other groups. The kernel takes no
    longer, since it computes whole panels.

    Args:
        groups: Number of groups.
        maps: Number of output channels, over all groups.
    """
    most = max(WIDTH * groups // maps, 1)
    return next(m for m in range(most, 0, -1) if groups % m == 0)


def _emit_bytes(node: Node, ctx: Lowering) -> list[Launch]:
    op, w, x, y = node.op_as(ChannelsLastQuantizedConv), node.arg(1), node.arg(0), node.output
    if 0 in y.dims:
        return []
    window, merged = window_of(node), _groups_per_panel(op.group, w.dims[0])
    groups = op.group // merged
    joined = groups == 1 and window.steps(window.dilations)[-1] == 1
    channels, n, positions = w.dims[1] * merged, w.dims[0] // groups, prod(y.dims[:-1])
    run = channels * (w.dims[-1] if joined else 1)
    lines = prod(w.dims[2:-1] if joined else w.dims[2:])
    depth = lines * round_up(run, _DOT_DEPTH)
    height, columns = partition(positions, n, groups, ctx)
    blocks = ceil_div(positions, height) * ceil_div(n, columns) * groups
    share = ceil_div(blocks, clamp(blocks, 1, _GROUPS_PER_CORE * ctx.caps.compute_units))
    work_groups = ceil_div(blocks, share)
    zeros, bias, factors = (_numbers(node, i) for i in (2, 3, 4))
    middle = 0 if x.dtype is DType.INT8 else 128

    def pack(array: Array) -> Array:
        shift = 128 if array.dtype == np.int8 else 0
        level_zeros = (zeros + shift).reshape(groups, n)
        maps, taps = n // merged, lines * run // channels
        levels = unsigned(array).reshape(groups, merged, maps, channels // merged, taps)
        whole = np.empty((groups, merged, maps, taps, merged, channels // merged), np.uint8)
        padded = np.empty((groups, n, lines, depth // lines), np.uint8)
        whole[...] = level_zeros.reshape(groups, merged, maps, 1, 1, 1)  # differences are 0
        padded[...] = level_zeros[:, :, None, None]
        for part in range(merged):
            whole[:, part, :, :, part] = levels[:, part].swapaxes(-1, -2)
        padded[..., :run] = whole.reshape(groups, n, lines, run)
        records = []
        for group in range(groups):
            rows, at = padded[group].reshape(n, depth), slice(group * n, (group + 1) * n)
            sums = rows.sum(axis=1, dtype=np.int64) - depth * level_zeros[group].astype(np.int64)
            starts = (middle - op.x_zero) * sums + bias[at]
            columns = np.stack(
                [starts.astype(np.int32), level_zeros[group], factors[at].view(np.int32)]
            )
            records.append(pack_panels(rows, columns.astype(np.int32)))
        return np.stack(records)

    nbytes = groups * ceil_div(n, WIDTH) * record_bytes(depth)
    layout = f"conv_bytes:{op.group}:{int(joined)}:{middle - op.x_zero}"
    kernel = KernelSpec.of(
        "conv/conv_bytes.cl",
        "conv_bytes_cpu",
        **ctx.tunables(CONV_BYTES),
        DOT_ISA=int(VNNI_INT8 in ctx.caps.matrix_shapes),
        MOST_ROWS=MAX_ROWS,
        A_T=x.dtype.cl,
        A_MIDDLE=middle,
        LEVEL_T=y.dtype.cl,
        JOINED=int(joined),
    )
    args = _args(node) | {
        "w": _layout(layout, node, nbytes, pack),
        "records": ctx.scratch(work_groups * height * depth, DType.UINT8),
        "M": positions,
        "N": n,
        "C": channels,
        "groups": groups,
        "height": height,
        "columns": columns,
        "share": share,
        "blocks": blocks,
        "padding": op.x_zero,
    }
    return [launch(kernel, (work_groups,), (1,), _flops(node), **args)]


def _reject_bytes(node: Node, caps: DeviceCaps) -> str | None:
    if VNNI_INT8 not in caps.matrix_shapes and not caps.simulator:
        return f"needs {VNNI_INT8}"
    return "there are no weights" if 0 in node.arg(1).dims else None


def _emit_depthwise(node: Node, ctx: Lowering) -> list[Launch]:
    op, w, y = node.op_as(ChannelsLastQuantizedConv), node.arg(1), node.output
    if 0 in y.dims:
        return []
    channels, taps, rows = w.dims[0], prod(w.dims[2:]), prod(y.dims[:-2])
    tunables, window = ctx.tunables(DEPTHWISE_BYTES), window_of(node)
    width, across = tunables["T_VW"], window.kernel_shape[-1]
    step = window.steps(window.strides)[-1]
    unrolled = window.steps(window.dilations)[-1] == 1 and across <= 7 and step <= 2
    zeros, bias, factors = (_numbers(node, i) for i in (2, 3, 4))
    panels = ceil_div(channels, width)

    def pack(array: Array) -> Array:
        packed = np.zeros((panels * width, taps + 2), np.float32)
        weights = array.reshape(channels, taps).astype(np.int32) - zeros[:, None]
        packed[:channels, :taps] = weights
        packed[:channels, taps] = bias.astype(np.int32).view(np.float32)
        packed[:channels, taps + 1] = factors
        by_panel = packed.reshape(panels, width, taps + 2).swapaxes(1, 2)
        return np.ascontiguousarray(by_panel)

    kernel = KernelSpec.of(
        "conv/depthwise_bytes.cl",
        "depthwise_bytes_cpu",
        **tunables,
        X_T=node.arg(0).dtype.cl,
        LEVEL_T=y.dtype.cl,
        S_ACROSS=across if unrolled else 0,
        S_STEP=step if unrolled else 0,
    )
    height = ctx.chunks_per_group(rows, ctx.thresholds(ChannelsLastPartition).rows)
    args = _args(node) | {
        "w": _layout(f"depthwise_bytes:{width}", node, panels * width * (taps + 2) * 4, pack),
        "rows": rows,
        "N": channels,
        "height": height,
        "x_zero": op.x_zero,
    }
    return [launch(kernel, (ceil_div(rows, height),), (1,), _flops(node), **args)]


def _reject_depthwise(node: Node, caps: DeviceCaps) -> str | None:
    op, w = node.op_as(ChannelsLastQuantizedConv), node.arg(1)
    if w.dims[1] != 1 or w.dims[0] != op.group:
        return f"{w.dims[0]} maps of {op.group} groups of {w.dims[1]} channels"
    if prod(w.dims[2:]) > MAX_DEPTHWISE_TAPS:
        return f"a window of {prod(w.dims[2:])} elements"
    return None


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    op, w, x, y = node.op_as(ChannelsLastQuantizedConv), node.arg(1), node.arg(0), node.output
    if 0 in y.dims:
        return []
    kernel = KernelSpec.of(
        "conv/conv_levels.cl",
        "conv_levels_any",
        X_T=x.dtype.cl,
        W_T=w.dtype.cl,
        LEVEL_T=y.dtype.cl,
    )
    args: dict[str, Any] = {"w": w, "w_zeros": node.arg(2), "biases": node.arg(3)}
    args |= {"factors": node.arg(4), "N": w.dims[0] // op.group, "C": w.dims[1]}
    args |= {"groups": op.group, "x_zero": op.x_zero}
    size = (w.dims[0], prod(y.dims[1:-1]), y.dims[0])
    return [launch(kernel, size, None, _flops(node), **_args(node), **args)]


@register
@dataclass(frozen=True)
class ChannelsLastQuantizedConv(Convolution):
    """Convolution of 8-bit integers, requantized: limit(round(sum * factor) + y_zero, low, high).

    A sum is that of (x - x_zero) * (w - its zero point) over a window, plus the bias, in int32; the
    padding is x_zero. round is to nearest even.

    Inputs: x `[N, spatial axes …, C]`, and the constants w `[O, C / group, window …]`, zero points
    of w int32 `[O]`, bias int32 `[O]`, and factors float32 `[O]`. x and w have 8-bit integers.

    Attributes:
        x_zero: Zero point of x.
        y_zero: Zero point of the output.
        low: Least element of the output.
        high: Greatest element of the output.
        to: Dtype of the output, int8 or uint8.

    Numerics: exact; sums wrap at 32 bits; NaN gives `low`. Source: clrt; ONNX QLinearConv, opset
    10, with channels last.
    """

    x_zero: int = 0
    y_zero: int = 0
    low: int = 0
    high: int = 255
    to: DType = field(default=DType.UINT8)

    domain = "clrt"
    accuracy = Accuracy.EXACT
    biased = False
    input_traits = InputTraits(plan_time=(1, 2, 3, 4))
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant("depthwise_bytes", _emit_depthwise, _reject_depthwise, requires.CPU),
        Variant("conv_bytes", _emit_bytes, _reject_bytes, requires.CPU),
        Variant("conv_levels_any", _emit_any, speed=PlainEfficiency),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        x, w = need(inputs, 0, self), need(inputs, 1, self)
        if x.dtype not in BYTES or w.dtype not in BYTES or self.to not in BYTES:
            raise ShapeError(f"{self.name}: {x}, {w} and {self.to} must have 8-bit integers.")
        dtypes = (DType.INT32, DType.INT32, DType.FLOAT32)
        maps = None if w.shape is None else w.shape[:1]
        for index, dtype in enumerate(dtypes, start=2):
            given, wanted = need(inputs, index, self), TensorType(dtype, maps)
            if not given.is_compatible(wanted):
                raise ShapeError(f"{self.name}: input {index} is {given}; expected {wanted}.")
        if x.shape is None or len(x.shape) < 3:
            return [TensorType(self.to, None)]
        rank = len(x.shape)
        moved = first_type(TensorType(w.dtype, x.shape), rank)
        (y,) = super().infer([moved, w])
        return [last_type(TensorType(self.to, y.shape), rank)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w, zeros, bias, factors = (np.asarray(a) for a in inputs)
        images = first_array(x.astype(np.int32) - self.x_zero, x.ndim)
        weights = w.astype(np.int32) - zeros.reshape(-1, *[1] * (w.ndim - 1))
        (sums,) = super().reference(images, weights.astype(np.int32))
        sums = np.moveaxis(sums, 1, -1) + bias
        with np.errstate(all="ignore"):
            levels = np.rint(sums.astype(np.float32) * factors) + np.float32(self.y_zero)
        return (np.fmin(np.fmax(levels, self.low), self.high).astype(self.to.numpy),)
