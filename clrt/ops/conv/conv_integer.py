"""ConvInteger: a convolution of 8-bit integers with zero points."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from clrt.device import requires
from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels import gemm_integer
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.gemm_problem import GemmProblem
from clrt.kernels.quantize_launches import ScaleIndexing
from clrt.kernels.spec import Launch
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Types
from clrt.ops.checks import agree, check_scalar, need
from clrt.ops.conv.conv import Convolution, lower_conv, unfolded
from clrt.ops.matmul.matmul_integer import BYTES
from clrt.ops.registry import register


def _lower(node: Node, ctx: Lowering, to: DType) -> tuple[list[Launch], GemmProblem]:
    """Emits the launches that subtract the zero points from x and from w.

    After the subtraction the padding is 0.

    Args:
        to: Dtype of the differences.

    Returns:
        The launches, and the GEMM of the convolution of the differences.
    """
    x, w, x_zero, w_zero = node.arg(0), node.arg(1), node.input(2), node.input(3)
    product = replace(lower_conv(node), dtype=to)
    maps, window = w.dims[0], prod(w.dims[1:])
    per_map = w_zero is not None and prod(w_zero.dims) > 1
    weights = (
        ScaleIndexing(1, maps, window, 1, (0, 1, 0))
        if per_map
        else ScaleIndexing(1, maps * window, 1)
    )
    first, a = gemm_integer.difference(w, w_zero, weights, to, ctx)
    images = ScaleIndexing(1, prod(x.dims), 1)
    second, b = gemm_integer.difference(x, x_zero, images, to, ctx)
    views = replace(product.a, buffer=a), replace(product.b, buffer=b)
    return [*first, *second], replace(product, a=views[0], b=views[1])


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    if 0 in node.output.dims:
        return []
    launches, product = _lower(node, ctx, DType.FLOAT32)
    for unfold, part in unfolded(node, product, ctx, gemm_integer.packed_width(product, ctx)):
        launches += (*unfold, *gemm_integer.emit_cpu(part, ctx))
    return launches


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    if 0 in node.output.dims:
        return []
    launches, product = _lower(node, ctx, DType.INT16)
    for unfold, part in unfolded(node, product, ctx, 0):
        launches += (*unfold, *gemm_integer.emit_any(part, ctx))
    return launches


@register
class ConvInteger(Convolution):
    """Convolution of (x - zero point of x) with (w - zero points of w), in int32; padding is 0.

    Inputs: x and w of 8-bit integers, and optionally their zero points: a scalar for x; a scalar,
    or one per output channel, for w.

    Numerics: exact; sums wrap at 32 bits. Source: ONNX ConvInteger, opset 10.
    """

    accuracy = Accuracy.EXACT
    biased = False
    variants = (
        Variant("gemm_integer_cpu", _emit_cpu, requires=requires.CPU),
        Variant("gemm_integer_any", _emit_any, speed=PlainEfficiency),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        x, w = need(inputs, 0, self), need(inputs, 1, self)
        for t, zero in zip((x, w), (*inputs[2:], None, None), strict=False):
            if t.dtype not in BYTES or (zero is not None and zero.dtype is not t.dtype):
                raise ShapeError(
                    f"{self.name}: {t} with zero point {zero} is not a valid 8-bit operand."
                )
        check_scalar(inputs, 2, self, "the zero point of x")
        if (
            len(inputs) > 3
            and w.shape
            and inputs[3] is not None
            and not agree(inputs[3], w.shape[:1])
        ):
            check_scalar(inputs, 3, self, "the zero point of w")
        (y,) = super().infer([x, TensorType(x.dtype, w.shape)])
        return [TensorType(DType.INT32, y.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w, x_zero, w_zero = (*inputs, None, None)[:4]
        assert x is not None and w is not None
        images, weights = x.astype(np.int32), w.astype(np.int32)
        if x_zero is not None:
            images = images - x_zero.astype(np.int32)
        if w_zero is not None:
            weights = weights - w_zero.astype(np.int32).reshape(-1, *[1] * (w.ndim - 1))
        return super().reference(images, weights)
