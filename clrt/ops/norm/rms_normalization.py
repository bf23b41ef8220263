"""RMSNormalization: division of rows by their root mean square, with a scale per element."""

from __future__ import annotations

import numpy as np

from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, OnnxNode, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.norm.layer_normalization import (
    VARIANTS,
    Normalization,
    check_affine,
    check_stash_type,
)
from clrt.ops.registry import register
from clrt.ops.traits import MemoryTraits
from clrt.util.fast_dataclass import dataclass


@register
@dataclass(frozen=True)
class RMSNormalization(Normalization):
    """x / sqrt(mean(x²) + epsilon) * scale over the axes from `axis` on.

    Source: ONNX RMSNormalization, opset 23, with stash_type float32.
    """

    axis: int = -1
    epsilon: float = 1e-5

    memory_traits = MemoryTraits(inplace_inputs=(0,))
    accuracy = Accuracy.ACCUMULATED
    variants = VARIANTS
    rms = True

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> RMSNormalization:
        check_stash_type(node)
        return cls(node.attrs.get("axis", -1), node.attrs.get("epsilon", 1e-5))

    def infer(self, inputs: Types) -> list[TensorType]:
        x, scale = need(inputs, 0, self), need(inputs, 1, self)
        if x.shape is not None:
            check_affine(self, x, scale, normalize_axis(self.axis, len(x.shape), self))
        return [TensorType(x.dtype, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale = inputs
        assert x is not None and scale is not None
        axes = tuple(range(normalize_axis(self.axis, x.ndim, self), x.ndim))
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):
            root = np.sqrt((wide**2).mean(axis=axes, keepdims=True) + self.epsilon)
            y = wide / root * scale.astype(np.float64)
        return (y.astype(x.dtype),)
