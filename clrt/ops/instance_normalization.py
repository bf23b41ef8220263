"""InstanceNormalization: each channel of each image to mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import Launch, Lowering, Variant
from clrt.ops.base import Accuracy, Op, Sample, Types, need, register
from clrt.ops.batch_normalization import check_channels, misfit
from clrt.ops.group_normalization import group_launch, group_reference


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    assert isinstance(node.op, InstanceNormalization)
    return group_launch(node, node.arg(0).dims[1], node.op.epsilon, False)


@register
@dataclass(frozen=True)
class InstanceNormalization(Op):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, statistics by channel.

    Source: ONNX InstanceNormalization, opset 6 to 22.
    """

    epsilon: float = 1e-5

    in_place = (0,)
    accuracy = Accuracy.ACCUMULATED
    variants = (Variant("any", _emit, misfit),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        for index in (1, 2):
            check_channels(self, x, need(inputs, index, self))
        return [TensorType(x.dtype, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = inputs[0]
        assert x is not None
        return group_reference(inputs, x.shape[1], self.epsilon, False)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(43)
        for shape in [(1, 1, 1), (2, 3, 65), (2, 3, 4, 5), (0, 2, 3)]:
            for dtype in (np.float32, np.float16):
                x = np.asarray(rng.standard_normal(shape), dtype)
                affine = np.asarray(rng.uniform(0.5, 2, (2, shape[1])), dtype)
                yield Sample(cls(), (x, affine[0], affine[1]))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        x, scale = np.zeros((2, 3, 4), np.float32), np.zeros(2, np.float32)
        yield Sample(cls(), (x, scale, scale)), ShapeError
