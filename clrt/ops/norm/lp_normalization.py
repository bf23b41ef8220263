"""LpNormalization: division by the 1- or 2-norm along an axis."""

from __future__ import annotations

from typing import Literal

import numpy as np

from clrt.ir.dtypes import WIDENED_STORAGES
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.axis_kernels import launch_lines
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.variant import Lowering, Variant, reject_in_float32
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import infer_along_axis, normalize_axis
from clrt.ops.norm.softmax import around_axis
from clrt.ops.registry import register
from clrt.ops.traits import MemoryTraits
from clrt.util.fast_dataclass import dataclass


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, op = node.arg(0), node.op_as(LpNormalization)
    sizes = around_axis(x.dims, normalize_axis(op.axis, len(x.dims), op))
    kernel = KernelSpec.of(
        "norm/lp_normalization.cl",
        "lp_normalization",
        P=op.p,
        DATA_T=x.dtype.cl,
        STORAGE=x.dtype.storage,
    )
    return launch_lines(kernel, x, node.output, sizes, 3)


@register
@dataclass(frozen=True)
class LpNormalization(Op):
    """x / ‖x‖ along an axis; 0 if the norm is 0.

    Attributes:
        axis: Axis along which the norm is computed.
        p: 1 for the sum of magnitudes as norm, 2 for the Euclidean norm.

    Source: ONNX LpNormalization, opset 1 to 22.
    """

    axis: int = -1
    p: Literal[1, 2] = 2

    supported_storages = WIDENED_STORAGES
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    accuracy = Accuracy.ACCUMULATED
    variants = (Variant("any", _emit, reject_in_float32),)

    def infer(self, inputs: Types) -> list[TensorType]:
        return infer_along_axis(inputs, self.axis, self)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        wide = x.astype(np.float64)
        norm = (np.abs(wide) ** self.p).sum(axis=self.axis, keepdims=True) ** (1 / self.p)
        with np.errstate(all="ignore"):
            return (np.where(norm == 0, 0, wide / norm).astype(x.dtype),)
