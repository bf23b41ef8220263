"""GroupNormalization with channels last."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.ir.dims import Shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, reject_but_float32
from clrt.ops.base import Accuracy, Types
from clrt.ops.checks import need
from clrt.ops.epilogue import EpilogueOp, fused_reference, fused_type
from clrt.ops.matmul.matmul import make_epilogue
from clrt.ops.norm.batch_normalization import ChannelNormPartition
from clrt.ops.norm.group_normalization import GroupNormalization
from clrt.ops.registry import register
from clrt.ops.traits import MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

_LAST = tuned("group_normalization_last", {"T_VW": (4, 8, 16)}, T_VW=8)
# Minimum channels per work-group, if x has as many: their elements of a position fill two cache
# lines.
_MIN_CHANNELS = 32


class _Partition(Thresholds):
    """Threshold of the number of launches of a normalization with channels last."""

    apply_kelems: int = tunable(
        64,
        "1024 elements of x",
        "Minimum size of x for a second launch that computes y, if the first has fewer groups "
        "than cores.",
    )

    group: ClassVar = "group_norm_last"


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    op, x, y = node.op_as(ChannelsLastGroupNormalization), node.arg(0), node.output
    if 0 in x.dims:
        return []
    epilogue = make_epilogue(op.steps, y.dtype, ())
    epilogue.check_vectors()
    batches, channels, groups = x.dims[0], x.dims[-1], op.num_groups
    width = channels // groups
    chunk = ctx.chunks_per_group(batches * groups, ctx.thresholds(ChannelNormPartition).rows)
    chunk = min(max(chunk, ceil_div(_MIN_CHANNELS, width)), groups)
    kernel = KernelSpec.of(
        "norm/group_normalization_last.cl",
        "group_normalization_last",
        **ctx.tunables(_LAST),
        PER_GROUP=int(op.per_group),
        **epilogue.defines,
    )
    size, elements = prod(x.dims[1:-1]), prod(x.dims)
    args: dict[str, Any] = {"y": y, "x": x, "scale": node.arg(1), "bias": node.arg(2)}
    args |= {"stats": ctx.scratch(batches * 3 * channels), "channels": channels}
    args |= {"group_channels": width, "size": size, "epsilon": op.epsilon, **epilogue.args}

    def launch_with(groups: int, flops: int, **sizes: int) -> Launch:
        return launch(kernel, (groups,), (1,), flops, **args, **sizes)

    work_groups, span = batches * ceil_div(groups, chunk), chunk * width
    limit = ctx.thresholds(_Partition).apply_kelems * 1024
    if work_groups >= ctx.caps.compute_units or elements < limit:
        return [launch_with(work_groups, 8 * elements, span=span, rows=size, statistics=1)]
    rows = ctx.chunks_per_group(batches * size, size)
    work = batches * ceil_div(size, rows)
    return [
        launch_with(work_groups, 5 * elements, span=span, rows=0, statistics=1),
        launch_with(work, 3 * elements, span=channels, rows=rows, statistics=0),
    ]


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    if any(node.arg(i).dtype is not DType.FLOAT32 for i in (1, 2)):
        return "for scale and bias of float32"
    return reject_but_float32(node, caps)


@register
@dataclass(frozen=True)
class ChannelsLastGroupNormalization(EpilogueOp):
    """Group normalization with channels last, followed by elementwise steps such as an activation.

    Inputs: x `[batch, …, channels]`; scale and bias, one element per channel, or per group if
    `per_group`. Statistics are per image and group of channels, as in `GroupNormalization`.
    Source: clrt.

    Attributes:
        steps: Elementwise program over the normalized x (operand 0).
    """

    num_groups: int = 1
    epsilon: float = 1e-5
    per_group: bool = False
    steps: tuple[ElementwiseInstruction, ...] = ()

    domain = "clrt"
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    accuracy = Accuracy.ACCUMULATED
    num_fixed_inputs: ClassVar[int] = 3
    variants: ClassVar[tuple[Variant, ...]] = (Variant("last_cpu", _emit, _reject, requires.CPU),)

    @property
    def _first(self) -> GroupNormalization:
        """The same normalization of x with the channels as axis 1."""
        return GroupNormalization(self.num_groups, self.epsilon, self.per_group)

    def supports_operand(self, extra: Shape | None, out: Shape | None) -> bool:
        return False

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        first = x.shape
        if first is not None and len(first) > 1:
            first = (first[0], first[-1], *first[1:-1])
        self._first.infer([TensorType(x.dtype, first), *inputs[1:]])
        return [fused_type(self, self.steps, TensorType(x.dtype, x.shape), ())]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, *affine = inputs
        assert x is not None
        (y,) = self._first.reference(np.moveaxis(x, -1, 1), *affine)
        last = np.ascontiguousarray(np.moveaxis(y, 1, -1))
        return (fused_reference(self.steps, last, ()),)
