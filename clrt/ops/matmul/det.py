"""Det: determinants."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import differ
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, i32
from clrt.kernels.variant import Lowering, Variant, reject_in_float32
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.ops.registry import register


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y = node.arg(0), node.output
    count, n = prod(y.dims), x.dims[-1]
    if not count:
        return []
    buffers = (BufferArg(y), BufferArg(x), BufferArg(ctx.scratch(max(count * n * n, 1))))
    kernel = KernelSpec.of("matmul/det.cl", "det")
    return [Launch(kernel, (count,), None, (*buffers, i32(count), i32(n)), count * n**3 * 2 // 3)]


@register
@dataclass(frozen=True)
class Det(Op):
    """The determinant of each matrix of a stack `[..., M, M]`. Source: ONNX Det, opset 11 to 22."""

    storages = frozenset({"plain"})
    variants = (Variant("elimination", _emit, reject_in_float32),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        sides = x.shape[-2:]
        if len(sides) < 2 or differ(*sides):
            raise ShapeError(f"Det: {x} is no stack of square matrices.")
        return [TensorType(x.dtype, x.shape[:-2])]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        return (np.asarray(np.linalg.det(x.astype(np.float64)), x.dtype),)
