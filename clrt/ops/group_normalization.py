"""GroupNormalization: groups of channels to mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import Arg, BufferArg, KernelSpec, Launch, Lowering, Variant, f32, i32
from clrt.ops.base import Accuracy, OnnxNode, Op, Sample, Types, need, register
from clrt.ops.batch_normalization import check_channels, half_defines, misfit


def group_launch(node: Node, groups: int, epsilon: float, per_group: bool) -> list[Launch]:
    """The launch of GroupNormalization and InstanceNormalization."""
    x = node.arg(0)
    if 0 in x.dims:
        return []
    batches, channels = x.dims[:2]
    size = int(np.prod(x.dims[2:]))
    kernel = KernelSpec.of(
        "channel_normalization.cl",
        "group_normalization",
        PER_GROUP=int(per_group),
        **half_defines(node),
    )
    buffers = [BufferArg(node.output), *(BufferArg(node.arg(i)) for i in range(3))]
    numbers = (batches, groups, channels // groups, size)
    args: tuple[Arg, ...] = (*buffers, *(i32(n) for n in numbers), f32(epsilon))
    return [Launch(kernel, (groups, batches), None, args, 8 * int(np.prod(x.dims)))]


def group_reference(
    inputs: tuple[Array | None, ...], groups: int, epsilon: float, per_group: bool
) -> tuple[Array]:
    """The reference of GroupNormalization and InstanceNormalization."""
    x, scale, bias = inputs
    assert x is not None and scale is not None and bias is not None
    if not x.size:
        return (x,)
    wide = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    centred = wide - wide.mean(axis=2, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + epsilon)
    rows = normal.reshape(x.shape[0], groups if per_group else x.shape[1], -1)
    y = rows * scale.astype(np.float64)[:, None] + bias.astype(np.float64)[:, None]
    return (y.reshape(x.shape).astype(x.dtype),)


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    op = node.op
    assert isinstance(op, GroupNormalization)
    return group_launch(node, op.num_groups, op.epsilon, op.per_group)


@register
@dataclass(frozen=True)
class GroupNormalization(Op):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, statistics by group of channels.

    Attributes:
        per_group: Scale and bias have an element per group, as before opset 21.

    Source: ONNX GroupNormalization, opset 18 to 21.
    """

    num_groups: int = 1
    epsilon: float = 1e-5
    per_group: bool = False

    in_place = (0,)
    accuracy = Accuracy.ACCUMULATED
    variants = (Variant("any", _emit, misfit),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> GroupNormalization:
        epsilon = node.attrs.get("epsilon", 1e-5)
        return cls(node.attrs["num_groups"], epsilon, node.opset < 21)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is not None:
            channels = x.shape[1] if len(x.shape) > 1 else None
            if channels is None or (isinstance(channels, int) and channels % self.num_groups):
                raise ShapeError(
                    f"GroupNormalization: the channels of {x} do not divide into "
                    f"{self.num_groups} groups."
                )
        for index in (1, 2):
            if not self.per_group:
                check_channels(self, x, need(inputs, index, self))
        return [TensorType(x.dtype, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return group_reference(inputs, self.num_groups, self.epsilon, self.per_group)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(41)
        for shape, groups in [((1, 1, 1), 1), ((2, 6, 7), 3), ((2, 4, 3, 5), 2), ((0, 4, 2), 2)]:
            for dtype in (np.float32, np.float16):
                for per_group in (False, True):
                    x = np.asarray(rng.standard_normal(shape), dtype)
                    affine = np.asarray(
                        rng.uniform(0.5, 2, (2, groups if per_group else shape[1])), dtype
                    )
                    yield Sample(cls(groups, per_group=per_group), (x, affine[0], affine[1]))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        x, scale = np.zeros((2, 3, 4), np.float32), np.zeros(3, np.float32)
        yield Sample(cls(2), (x, scale, scale)), ShapeError
