"""GroupNormalization, and the base class that it shares with InstanceNormalization."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from clrt.device import requires
from clrt.errors import ShapeError
from clrt.ir.dtypes import WIDENED_STORAGES
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import agree, need
from clrt.ops.norm.batch_normalization import (
    SOURCE,
    check_channels,
    launch_rows,
    reject_cpu,
    reject_reason,
    type_defines,
)
from clrt.ops.registry import register
from clrt.ops.traits import MemoryTraits, OnnxTraits
from clrt.util.fast_dataclass import dataclass

CPU = tuned("group_normalization_cpu", {"T_VW": (4, 8, 16)}, T_VW=8)


def _numbers(node: Node) -> tuple[int, int, int, int]:
    """Returns the numbers of images, groups, channels per group, and elements per channel of x."""
    dims, op = node.arg(0).dims, node.op_as(GroupStatistics)
    groups = op.groups(dims[1])
    return dims[0], groups, dims[1] // max(groups, 1), prod(dims[2:])


def _args(node: Node) -> dict[str, Any]:
    tensors = {name: node.arg(i) for i, name in enumerate(("x", "scale", "bias"))}
    names = ("batches", "groups", "group_channels", "size")
    sizes = dict(zip(names, _numbers(node), strict=True))
    return {"y": node.output, **tensors, **sizes, "epsilon": node.op_as(GroupStatistics).epsilon}


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    batches, groups, _, _ = _numbers(node)
    if 0 in node.arg(0).dims:
        return []
    flops, per_group = 8 * prod(node.arg(0).dims), int(node.op_as(GroupStatistics).per_group)
    return launch_rows(CPU, batches * groups, _args(node), flops, ctx, PER_GROUP=per_group)


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    batches, groups, _, _ = _numbers(node)
    if 0 in node.arg(0).dims:
        return []
    defines = {
        "VW": 1,
        "PER_GROUP": int(node.op_as(GroupStatistics).per_group),
        **type_defines(node),
    }
    kernel = KernelSpec.of(SOURCE, "group_normalization", **defines)
    flops = 8 * prod(node.arg(0).dims)
    return [launch(kernel, (groups, batches), None, flops, **_args(node))]


class GroupStatistics(Op):
    """Base class of normalizations with statistics by group of channels (axis 1).

    Attributes:
        epsilon: Added to the variance before the root.
        num_groups: Number of groups; None if each channel is a group.
        per_group: Whether scale and bias have an element per group, not per channel.
    """

    epsilon: float
    num_groups: int | None = None
    per_group: bool = False

    supported_storages = WIDENED_STORAGES
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    accuracy = Accuracy.ACCUMULATED
    variants = (
        Variant("cpu", _emit_cpu, reject_cpu, requires.CPU),
        Variant("any", _emit_any, reject_reason, speed=PlainEfficiency),
    )

    def groups(self, channels: int) -> int:
        """Returns the number of groups of an input with `channels` channels."""
        return channels if self.num_groups is None else self.num_groups

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale, bias = inputs
        assert x is not None and scale is not None and bias is not None
        if not x.size:
            return (x,)
        groups = self.groups(x.shape[1])
        wide = x.astype(np.float64).reshape(x.shape[0], groups, -1)
        centred = wide - wide.mean(axis=2, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + self.epsilon)
        rows = normal.reshape(x.shape[0], groups if self.per_group else x.shape[1], -1)
        y = rows * scale.astype(np.float64)[:, None] + bias.astype(np.float64)[:, None]
        return (y.reshape(x.shape).astype(x.dtype),)


@register
@dataclass(frozen=True)
class GroupNormalization(GroupStatistics):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, statistics by group of channels.

    Inputs: x; scale and bias, one element per channel or group.

    Attributes:
        num_groups: Number of groups, a divisor of the channels.
        epsilon: Added to the variance before the root.
        per_group: Whether scale and bias have an element per group, as before opset 21, not per
            channel.

    Source: ONNX GroupNormalization, opset 18 to 21.
    """

    num_groups: int = 1
    epsilon: float = 1e-5
    per_group: bool = False
    onnx_traits = OnnxTraits(non_attribute_fields=frozenset({"per_group"}))

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> GroupNormalization:
        epsilon = node.attrs.get("epsilon", 1e-5)
        return cls(node.attrs["num_groups"], epsilon, node.opset < 21)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is not None:
            channels = x.shape[1] if len(x.shape) > 1 else None
            groups = self.num_groups
            if channels is None or groups < 1 or (isinstance(channels, int) and channels % groups):
                raise ShapeError(
                    f"GroupNormalization: the channels of {x} do not divide into "
                    f"{self.num_groups} groups."
                )
        for index in (1, 2):
            affine = need(inputs, index, self)
            if not self.per_group:
                check_channels(self, x, affine)
            elif not agree(affine, (self.num_groups,)):
                raise ShapeError(
                    f"GroupNormalization: {affine} is not one element for each of the "
                    f"{self.num_groups} groups (num_groups)."
                )
        return [TensorType(x.dtype, x.shape)]
