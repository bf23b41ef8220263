"""Hardmax: one-hot encoding of the largest element along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.ir.graph import Node, Value
from clrt.ir.op import Array
from clrt.kernels.axis_kernels import launch_lines
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.variant import Lowering, Variant, reject_float64
from clrt.ops.base import Accuracy
from clrt.ops.checks import normalize_axis
from clrt.ops.norm.softmax import SoftmaxBase, around_axis, split
from clrt.ops.registry import register

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, op = node.arg(0), node.op_as(Hardmax)
    kernel = KernelSpec.of(
        "norm/hardmax.cl",
        "hardmax",
        DATA_T=x.dtype.cl,
        STORAGE=x.dtype.storage,
        VALUE_T=x.dtype.compute,
    )
    return launch_lines(kernel, x, node.output, split(op, x), 1)


@register
class Hardmax(SoftmaxBase):
    """1 at the first largest element along an axis (NaN counts as largest), 0 elsewhere.

    Source: ONNX Hardmax, opset 1 to 13.
    """

    supported_storages = None
    accuracy = Accuracy.EXACT
    variants = (Variant("lines", _emit, reject_float64),)

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        return [None]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        outer, n, inner = around_axis(x.shape, normalize_axis(self.axis, x.ndim, self))
        lines = x.reshape((outer, n * inner, 1) if self.flatten else (outer, n, inner))
        y = np.zeros(lines.shape, x.dtype)
        if x.size:
            indices = np.argmax(lines.astype(np.float64), axis=1, keepdims=True)
            np.put_along_axis(y, indices, np.ones((), x.dtype), axis=1)
        return (y.reshape(x.shape),)
