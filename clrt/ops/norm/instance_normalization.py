"""InstanceNormalization: normalization of each channel of each image."""

from __future__ import annotations

from clrt.ir.op import TensorType
from clrt.ops.base import Types
from clrt.ops.checks import need
from clrt.ops.norm.batch_normalization import check_channels
from clrt.ops.norm.group_normalization import GroupStatistics
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass


@register
@dataclass(frozen=True)
class InstanceNormalization(GroupStatistics):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, statistics by image and channel.

    Inputs: x; scale and bias, one element per channel.

    Source: ONNX InstanceNormalization, opset 6 to 22.
    """

    epsilon: float = 1e-5

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        for index in (1, 2):
            check_channels(self, x, need(inputs, index, self))
        return [TensorType(x.dtype, x.shape)]
