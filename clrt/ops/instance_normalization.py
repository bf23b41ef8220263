"""InstanceNormalization: each channel of each image to mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import TensorType
from clrt.ops.base import Sample, Types, need, register
from clrt.ops.batch_normalization import check_channels
from clrt.ops.group_normalization import GroupStatistics


@register
@dataclass(frozen=True)
class InstanceNormalization(GroupStatistics):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, statistics by channel.

    Source: ONNX InstanceNormalization, opset 6 to 22.
    """

    epsilon: float = 1e-5

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        for index in (1, 2):
            check_channels(self, x, need(inputs, index, self))
        return [TensorType(x.dtype, x.shape)]

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
