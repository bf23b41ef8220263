"""Det: determinants of square matrices."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import provably_different
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, Variant, reject_in_float32
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.ops.registry import register


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y = node.arg(0), node.output
    count, n = prod(y.dims), x.dims[-1]
    if not count:
        return []
    kernel, flops = KernelSpec.of("matmul/det.cl", "det"), count * n**3 * 2 // 3
    copy = ctx.scratch(max(count * n * n, 1))
    return [launch(kernel, (count,), None, flops, y=y, x=x, copy=copy, count=count, n=n)]


@register
class Det(Op):
    """The determinant of each matrix of a stack `[..., size, size]`.

    Source: ONNX Det, opset 11 to 22.
    """

    supported_storages = frozenset({"plain"})
    variants = (Variant("elimination", _emit, reject_in_float32),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        sides = x.shape[-2:]
        if len(sides) < 2 or provably_different(*sides):
            raise ShapeError(f"Det: {x} is not a stack of square matrices.")
        return [TensorType(x.dtype, x.shape[:-2])]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        return (np.asarray(np.linalg.det(x.astype(np.float64)), x.dtype),)
