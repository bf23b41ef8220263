"""Convolution of channels-last images on CPUs, without im2col.

The channels of a position are contiguous, so that kernels read windows directly from x, and the
epilogue works on vectors of channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.ir.dims import Shape, provably_equal, same_shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.gemm_cpu import GemmPartitionThresholds, emit_cpu
from clrt.kernels.gemm_tile import panel_width, select_tile
from clrt.kernels.panel_layout import Panels
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, reject_but_float32
from clrt.ops.base import Op, Types
from clrt.ops.conv.channels_last_gemm import geometry, launch_rows, product_of, zeros
from clrt.ops.conv.conv import FusedConv, window_of
from clrt.ops.conv.conv1d_gemm import product_of_lines
from clrt.ops.conv.winograd import emit_winograd, reject_winograd
from clrt.ops.pointwise.fused import symbolic_shape
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

# Maximum window elements of the depthwise kernel, which keeps their offsets in private memory.
MAX_DEPTHWISE_TAPS = 128
# Unrolled sizes along the last axis: window widths of depthwise kernels, window widths of kernels
# for one channel, and strides.
_DEPTHWISE_WIDTHS, _WIDTHS, _STRIDES = (3, 5, 7), range(2, 17), (1, 2, 3, 4)


class ChannelsLastPartition(Thresholds):
    """Threshold of the partition of direct channels-last convolutions over CPU cores."""

    rows: int = tunable(8, "output rows", "Maximum per work-group, to amortize its start.")

    group: ClassVar = "conv_rows_shares"


ROWS = tuned(
    "conv_rows_cpu",
    {"T_MR": (4, 6, 8, 12), "T_NV": (1, 2, 3, 4), "T_VW": (4, 8, 16), "T_MC": (8, 32, 128)},
    T_MR=4,
    T_NV=3,
    T_VW=8,
    T_MC=32,
    T_KU=2,
)
IMAGE = tuned(
    "conv_image_cpu",
    {"T_MR": (4, 6, 8, 12), "T_NV": (1, 2, 3, 4), "T_VW": (4, 8, 16)},
    T_MR=4,
    T_NV=2,
    T_VW=8,
)
DEPTHWISE_ROWS = tuned(
    "depthwise_rows_cpu",
    {"T_MR": (2, 4, 6, 8), "T_NV": (1, 2), "T_VW": (4, 8, 16)},
    T_MR=8,
    T_NV=1,
    T_VW=8,
)


def order_to_last(rank: int) -> tuple[int, ...]:
    """Returns the `perm` of a Transpose that moves the channels from axis 1 to the last axis.

    Args:
        rank: Rank of the images, spatial axes plus 2.
    """
    return (0, *range(2, rank), 1)


def order_to_first(rank: int) -> tuple[int, ...]:
    """Returns the `perm` of a Transpose that moves the channels from the last axis to axis 1.

    Args:
        rank: Rank of the images, spatial axes plus 2.
    """
    return (0, rank - 1, *range(1, rank - 1))


def _moved(shape: Shape, rank: int, order: Sequence[int]) -> Shape:
    """Pads a shape with leading 1s to rank `rank`, then permutes its axes.

    Args:
        order: For each axis of the result, the axis of the padded shape.
    """
    full = (*(1,) * (rank - len(shape)), *shape)
    return tuple(full[a] for a in order)


def first_type(type_: TensorType | None, rank: int) -> TensorType | None:
    """Returns the type of a channels-last tensor after its channels were moved to axis 1.

    Args:
        type_: The type, of at most `rank` axes; None for an absent tensor.
        rank: Rank of the images.
    """
    if type_ is None or type_.shape is None:
        return type_
    return TensorType(type_.dtype, _moved(type_.shape, rank, order_to_first(rank)))


def last_type(type_: TensorType, rank: int) -> TensorType:
    """Returns the type of a channels-first tensor after its channels were moved to the last axis.

    Args:
        rank: Rank of the images.
    """
    if type_.shape is None:
        return type_
    return TensorType(type_.dtype, _moved(type_.shape, rank, order_to_last(rank)))


def first_array(array: Array | None, rank: int) -> Array | None:
    """Returns a channels-last array with its channels moved to axis 1.

    Args:
        array: The array, of at most `rank` axes; None for an absent tensor.
        rank: Rank of the images.
    """
    if array is None:
        return None
    return array.reshape(*(1,) * (rank - array.ndim), *array.shape).transpose(order_to_first(rank))


def _emit_rows(node: Node, ctx: Lowering) -> list[Launch]:
    product = product_of(node)
    if product.is_empty:
        return []
    w, op = node.arg(1), node.op_as(ChannelsLastConv)
    if op.group == 1 and window_of(node).is_pointwise:
        return emit_cpu(product, ctx)
    if (lines := product_of_lines(node, product, ctx)) is not None:
        return emit_cpu(lines, ctx)
    tunables = select_tile(ROWS, product, ctx)
    columns, rows = panel_width(tunables), product.batch[0] * product.m
    blocks, panels = ceil_div(rows, tunables["T_MR"]), ceil_div(product.n, columns) * op.group
    shares = ctx.thresholds(GemmPartitionThresholds)
    longest = min(shares.stripe, tunables["T_MC"])
    height = shares.height(blocks, panels, longest, ctx.caps)
    channels, taps = w.dims[1], prod(w.dims[2:])
    return launch_rows(
        node,
        product,
        ROWS,
        tunables,
        ceil_div(blocks, height) * panels,
        w=Panels(product.k, product.n, columns, True, taps).of(w),
        zeros=zeros(w.dims[-1] * channels),
        M=rows,
        C=channels,
        groups=op.group,
        height=height,
    )


def _emit_image(node: Node, ctx: Lowering) -> list[Launch]:
    product, w = product_of(node), node.arg(1)
    if product.is_empty:
        return []
    tunables, rows = ctx.tunables(IMAGE), prod(node.output.dims[:-2])
    tunables["T_NV"] = min(tunables["T_NV"], ceil_div(w.dims[0], tunables["T_VW"]))
    across, step = _along_last(node)
    height = ctx.chunks_per_group(rows, ctx.thresholds(ChannelsLastPartition).rows)
    return launch_rows(
        node,
        product,
        IMAGE,
        {**tunables, "S_ACROSS": across, "S_STEP": step},
        ceil_div(rows, height),
        w=Panels(prod(w.dims[2:]), product.n, panel_width(tunables), True).of(w),
        rows=rows,
        height=height,
    )


def _along_last(node: Node) -> tuple[int, int]:
    """Returns width and stride of a convolution's window along the last spatial axis, in elements.

    Returns (0, 0) if the window is dilated along that axis.
    """
    window = window_of(node)
    if window.steps(window.dilations)[-1] != 1:
        return 0, 0
    return window.kernel_shape[-1], window.steps(window.strides)[-1]


def _emit_depthwise(node: Node, ctx: Lowering) -> list[Launch]:
    product, w = product_of(node), node.arg(1)
    if product.is_empty:
        return []
    channels, taps = w.dims[0], prod(w.dims[2:])
    operands = tuple(
        replace(o, strides=(o.strides[0], 0, o.strides[2])) for o in product.epilogue.operands
    )
    # Depthwise: the groups, of one channel each, become the columns of one GEMM.
    whole = replace(
        product,
        batch=(product.batch[0], 1),
        n=channels,
        epilogue=replace(product.epilogue, operands=operands),
    )
    tunables = ctx.tunables(DEPTHWISE_ROWS)
    # Half the vector width, if the last vector would be half empty.
    if channels % tunables["T_VW"] == tunables["T_VW"] // 2:
        tunables["T_VW"] //= 2
    width = symbolic_shape(node.output)[-2]
    if isinstance(width, int):  # a tile wider than the image would compute unused positions
        tunables["T_MR"] = min(tunables["T_MR"], 2 * ceil_div(width, 2))
    panel, rows = panel_width(tunables), prod(node.output.dims[:-2])
    across, step = _along_last(node)
    unrolled = across in _DEPTHWISE_WIDTHS and step in _STRIDES
    macros = {
        "S_TAPS": taps,
        "S_ACROSS": across if unrolled else 0,
        "S_STEP": step if unrolled else 0,
        "S_WHOLE": int(channels % panel == 0),
    }
    height = ctx.chunks_per_group(rows, ctx.thresholds(ChannelsLastPartition).rows)
    return launch_rows(
        node,
        whole,
        DEPTHWISE_ROWS,
        tunables | macros,
        ceil_div(rows, height),
        w=Panels(taps, channels, panel, True).of(w),
        zeros=zeros(channels),
        rows=rows,
        height=height,
    )


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    product, x, y = product_of(node), node.arg(0), node.output
    if product.is_empty:
        return []
    kernel = KernelSpec.of(
        "conv/conv_last.cl",
        "conv_last_any",
        DATA_T=x.dtype.cl,
        STORAGE=x.dtype.storage,
        Y_T=y.dtype.cl,
        Y_STORAGE=y.dtype.storage,
        **product.epilogue.defines,
    )
    images, groups = product.batch
    sizes = {"N": product.n, "C": node.arg(1).dims[1], "groups": groups}
    args = {"y": y, "x": x, "w": node.arg(1)} | sizes | geometry(node) | product.epilogue.args
    size = (product.n, product.m, images * groups)
    return [launch(kernel, size, None, product.flops, **args)]


def _reject_rows(node: Node, caps: DeviceCaps) -> str | None:
    if 0 in node.arg(1).dims:
        return "there are no weights"
    return reject_but_float32(node, caps)


def _reject_image(node: Node, caps: DeviceCaps) -> str | None:
    op, w = node.op_as(ChannelsLastConv), node.arg(1)
    if op.group != 1 or w.dims[1] != 1:
        return f"{w.dims[1]} channels"
    across, step = _along_last(node)
    if across not in _WIDTHS or step not in _STRIDES:
        return f"a window of {across} elements in a row, {step} apart"
    return _reject_rows(node, caps)


def _reject_depthwise(node: Node, caps: DeviceCaps) -> str | None:
    op, w = node.op_as(ChannelsLastConv), node.arg(1)
    if w.dims[1] != 1 or w.dims[0] != op.group:
        return f"{w.dims[0]} maps of {op.group} groups of {w.dims[1]} channels"
    if prod(w.dims[2:]) > MAX_DEPTHWISE_TAPS:
        return f"a window of {prod(w.dims[2:])} elements"
    return _reject_rows(node, caps)


def _reject_any(node: Node, caps: DeviceCaps) -> str | None:
    dtype = node.arg(0).dtype
    return None if dtype.is_float and dtype is not DType.FLOAT64 else f"no kernel for {dtype}"


@register
@dataclass(frozen=True)
class ChannelsLastConv(FusedConv):
    """FusedConv on channels-last images `[N, spatial axes …, C]`; w is `[O, C / group, window …]`.

    N is the number of images; C and O are the input and output channels. Inputs: x, w, bias or
    None, and the extras, tensors that the epilogue reads, which broadcast to the channels-last
    result.

    Source: clrt; the pass `channels_last` replaces a Conv by this op if that is faster.
    """

    # The weights are packed for the kernels at planning.
    input_traits = InputTraits(plan_time=(1,))
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant("depthwise_rows", _emit_depthwise, _reject_depthwise, requires.CPU),
        Variant("conv_image", _emit_image, _reject_image, requires.CPU),
        Variant("winograd", emit_winograd, reject_winograd, requires.CPU),
        Variant("conv_rows", _emit_rows, _reject_rows, requires.CPU),
        Variant("channels_last_any", _emit_any, _reject_any, speed=PlainEfficiency),
    )

    def with_epilogue(self, steps: tuple[ElementwiseInstruction, ...]) -> Op:
        return replace(self, steps=steps)

    def supports_operand(self, extra: Shape | None, out: Shape | None) -> bool:
        if extra is None or out is None or len(extra) > len(out):
            return False
        full = (1,) * (len(out) - len(extra)) + extra
        ends = zip((full[0], full[-1]), (out[0], out[-1]), strict=True)
        if not all(provably_equal(e, 1) or provably_equal(e, o) for e, o in ends):
            return False
        return all(provably_equal(e, 1) for e in full[1:-1]) or same_shape(full[1:-1], out[1:-1])

    def infer(self, inputs: Types) -> list[TensorType]:
        x = inputs[0]
        if x is None or x.shape is None or len(x.shape) < 3:
            return super().infer(inputs)
        rank = len(x.shape)
        extras = [first_type(t, rank) for t in inputs[3:]]
        (y,) = super().infer([first_type(x, rank), *inputs[1:3], *extras])
        return [last_type(y, rank)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = inputs[0]
        assert x is not None
        extras = [first_array(a, x.ndim) for a in inputs[3:]]
        (y,) = super().reference(first_array(x, x.ndim), *inputs[1:3], *extras)
        return (np.ascontiguousarray(y.transpose(order_to_last(x.ndim))),)
