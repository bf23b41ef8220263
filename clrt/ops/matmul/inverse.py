"""Inverse: inverses of matrices."""

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
    elems, n = prod(y.dims), x.dims[-1]
    if not elems:
        return []
    count = elems // n**2
    kernel, flops = KernelSpec.of("matmul/inverse.cl", "inverse"), 2 * elems * n
    copy = ctx.scratch(elems)
    return [launch(kernel, (count,), None, flops, y=y, x=x, copy=copy, count=count, n=n)]


@register
class Inverse(Op):
    """The inverse of each matrix of a stack `[..., size, size]`.

    The inverse of a singular matrix has non-finite numbers.

    Source: com.microsoft Inverse 1.
    """

    domain = "com.microsoft"
    supported_storages = frozenset({"plain"})
    variants = (Variant("elimination", _emit, reject_in_float32),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is not None and (len(x.shape) < 2 or provably_different(*x.shape[-2:])):
            raise ShapeError(f"Inverse: {x} is not a stack of square matrices.")
        return [TensorType(x.dtype, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        result = np.full(x.shape, np.nan)
        for index in np.ndindex(x.shape[:-2]):
            try:
                result[index] = np.linalg.inv(x[index].astype(np.float64))
            except np.linalg.LinAlgError:
                continue
        return (result.astype(x.dtype),)
