"""GroupNormalization with channels last."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, reject_but_float32
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.norm.batch_normalization import ChannelNormPartition
from clrt.ops.norm.group_normalization import GroupNormalization
from clrt.ops.registry import register
from clrt.ops.traits import MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

_LAST = tuned("group_normalization_last", {"T_VW": (4, 8, 16)}, T_VW=8)
# Channels whose elements of a position fill two cache lines: work-groups have as many or more.
_MIN_CHANNELS = 32


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    op, x, y = node.op_as(ChannelsLastGroupNormalization), node.arg(0), node.output
    if 0 in x.dims:
        return []
    batches, channels, groups = x.dims[0], x.dims[-1], op.num_groups
    width = channels // groups
    chunk = ctx.chunks_per_group(batches * groups, ctx.thresholds(ChannelNormPartition).rows)
    chunk = min(max(chunk, ceil_div(_MIN_CHANNELS, width)), groups)
    kernel = KernelSpec.of(
        "norm/group_normalization_last.cl",
        "group_normalization_last",
        **ctx.tunables(_LAST),
        PER_GROUP=int(op.per_group),
    )
    tensors = {"y": y, "x": x, "scale": node.arg(1), "bias": node.arg(2)}
    sizes = {"channels": channels, "group_channels": width, "size": prod(x.dims[1:-1])}
    work_groups = batches * ceil_div(groups, chunk)
    stats = ctx.scratch(batches * 3 * channels)
    numbers = {**sizes, "span": chunk * width, "epsilon": op.epsilon}
    flops = 8 * prod(x.dims)
    return [launch(kernel, (work_groups,), (1,), flops, **tensors, stats=stats, **numbers)]


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    if any(node.arg(i).dtype is not DType.FLOAT32 for i in (1, 2)):
        return "for scale and bias of float32"
    return reject_but_float32(node, caps)


@register
@dataclass(frozen=True)
class ChannelsLastGroupNormalization(Op):
    """GroupNormalization of x `[batch, …, channels]`, by group of channels.

    Inputs and attributes are those of `GroupNormalization`, but the channels are the last axis of
    x. Source: clrt.
    """

    num_groups: int = 1
    epsilon: float = 1e-5
    per_group: bool = False

    domain = "clrt"
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    accuracy = Accuracy.ACCUMULATED
    variants: ClassVar[tuple[Variant, ...]] = (Variant("last_cpu", _emit, _reject, requires.CPU),)

    @property
    def _first(self) -> GroupNormalization:
        return GroupNormalization(self.num_groups, self.epsilon, self.per_group)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is not None and len(x.shape) > 1:
            first = TensorType(x.dtype, (x.shape[0], x.shape[-1], *x.shape[1:-1]))
            self._first.infer([first, *inputs[1:]])
        return [TensorType(x.dtype, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, *affine = inputs
        assert x is not None
        (y,) = self._first.reference(np.moveaxis(x, -1, 1), *affine)
        return (np.ascontiguousarray(np.moveaxis(y, 1, -1)),)
