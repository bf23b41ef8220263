"""BatchNormalization in inference mode: normalization by given means and variances per channel."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.cl_code import Define
from clrt.ir.dims import provably_different
from clrt.ir.dtypes import WIDENED_STORAGES, DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.strided import launch_grid
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import TunedKernel, tuned
from clrt.kernels.variant import Lowering, Variant, reject_but_float32, reject_in_float32
from clrt.ops.base import Accuracy, Decompose, OnnxNode, Op, Types
from clrt.ops.checks import need
from clrt.ops.registry import register
from clrt.ops.traits import MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

CPU = tuned("batch_normalization_cpu", {"T_VW": (4, 8, 16)}, T_VW=8)
SOURCE = "norm/channel_normalization.cl"


class ChannelNormPartition(Thresholds):
    """Threshold of the partition of channel normalizations into CPU work-groups."""

    rows: int = tunable(64, "channel planes", "Maximum per work-group, to amortize its start.")

    group: ClassVar = "channel_norm_shares"


def reject_reason(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why no kernel supports the dtypes of a channel normalization; None if one does."""
    if reason := reject_in_float32(node, caps):
        return reason
    stats = {node.arg(i).dtype for i in range(1, len(node.inputs))}
    if len(stats) > 1 or any(d.compute != "float" for d in stats):
        return f"scale and statistics are of {', '.join(sorted(map(str, stats)))}"
    return None


def reject_cpu(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why the CPU vector kernels of channel normalizations do not apply; None if they do.

    The kernels need float32 for all inputs, and an x with at least one axis after the channels.
    """
    if any(node.arg(i).dtype is not DType.FLOAT32 for i in range(1, len(node.inputs))):
        return "for statistics of float32"
    small = len(node.arg(0).dims) < 3
    return reject_but_float32(node, caps) or ("a channel is one element" if small else None)


def launch_rows(
    kernel: TunedKernel,
    rows: int,
    args: Mapping[str, Any],
    flops: int,
    ctx: Lowering,
    **defines: int,
) -> list[Launch]:
    """Returns a launch of a CPU vector kernel of channel_normalization.cl over rows.

    A row is a channel, or a group of channels, of one image. Each work-group computes several rows.

    Args:
        kernel: Kernel, with its tunables.
        rows: Number of rows.
        args: Kernel arguments except `rows`, the number of rows per work-group.
        flops: Floating-point operations of the launch.
        defines: Macros besides the tunables.
    """
    chunk = ctx.chunks_per_group(rows, ctx.thresholds(ChannelNormPartition).rows)
    spec = KernelSpec.of(SOURCE, kernel.entry, **ctx.tunables(kernel), **defines)
    return [launch(spec, (ceil_div(rows, chunk),), (1,), flops, rows=chunk, **args)]


def type_defines(node: Node) -> dict[str, Define]:
    """Returns the kernel macros of two dtypes: of x and y, and of scale, bias and statistics."""
    x, scale = node.arg(0).dtype, node.arg(1).dtype
    return {
        "DATA_T": x.cl,
        "STORAGE": x.storage,
        "STAT_T": scale.cl,
        "STAT_STORAGE": scale.storage,
    }


def _sizes(node: Node) -> tuple[int, int, int]:
    """Returns the numbers of images, channels, and elements per channel and image of input 0."""
    dims = node.arg(0).dims
    return dims[0], dims[1] if len(dims) > 1 else 1, prod(dims[2:])


def _args(node: Node) -> dict[str, Any]:
    names = ("x", "scale", "bias", "mean", "variance")
    tensors = {name: node.arg(i) for i, name in enumerate(names)}
    sizes = dict(zip(("batches", "channels", "size"), _sizes(node), strict=True))
    return {"y": node.output, **tensors, **sizes, "epsilon": node.op_as(BatchNormalization).epsilon}


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    batches, channels, size = _sizes(node)
    rows = batches * channels
    if not rows * size:
        return []
    return launch_rows(CPU, rows, _args(node), 2 * rows * size, ctx)


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    batches, channels, size = _sizes(node)
    elements = batches * channels * size
    if not elements:
        return []
    kernel = KernelSpec.of(SOURCE, "batch_normalization", VW=1, **type_defines(node))
    grid = (size, channels, batches)
    return [launch_grid(kernel, grid, ctx.caps, 2 * elements, **_args(node))]


@register
@dataclass(frozen=True)
class BatchNormalization(Op):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, by channel (axis 1).

    Inputs: x, scale, bias, mean, variance; all but x have one element per channel.

    Source: ONNX BatchNormalization, opset 7 to 15, in inference mode.
    """

    epsilon: float = 1e-5

    supported_storages = WIDENED_STORAGES
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    accuracy = Accuracy.ELEMENTWISE
    variants = (
        Variant("cpu", _emit_cpu, reject_cpu, requires.CPU),
        Variant("any", _emit_any, reject_reason, speed=PlainEfficiency),
    )

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> BatchNormalization:
        training = node.attrs.get("training_mode", 0) or any(node.outputs[1:])
        if training or not node.attrs.get("spatial", 1):
            raise Decompose
        return cls(node.attrs.get("epsilon", 1e-5))

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        for index in range(1, 5):
            check_channels(self, x, need(inputs, index, self))
        return [TensorType(x.dtype, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = inputs[0]
        assert x is not None
        shape = (-1, *[1] * (x.ndim - 2))
        scale, bias, mean, variance = (
            a.astype(np.float64).reshape(shape) for a in inputs[1:] if a is not None
        )
        with np.errstate(all="ignore"):
            y = (x - mean) / np.sqrt(variance + self.epsilon) * scale + bias
        return (y.reshape(x.shape).astype(x.dtype),)


def check_channels(op: Op, x: TensorType, stat: TensorType) -> None:
    """Checks that a scale, bias or statistic has one element per channel of x (axis 1).

    Args:
        op: Op, named in the message.
        x: Type of the images.
        stat: Type of the scale, bias or statistic.

    Raises:
        ShapeError: The rank of `stat` is not 1, or its size differs from the number of channels.
    """
    if x.shape is None or stat.shape is None:
        return
    channels = x.shape[1] if len(x.shape) > 1 else 1
    if len(stat.shape) != 1 or provably_different(stat.shape[0], channels):
        raise ShapeError(f"{op.name}: {stat} is not one element per channel of {x}.")
