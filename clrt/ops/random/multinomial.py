"""Multinomial: samples classes from unnormalized log-probabilities."""

from __future__ import annotations

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, Variant, reject_float64
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import fresh_dim
from clrt.ops.pointwise.cast import onnx_dtype
from clrt.ops.random.philox import RandomOp, key_args, key_of, uniforms
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y = node.arg(0), node.output
    (rows, classes), samples = x.dims, y.dims[1]
    if not rows or not samples:
        return []
    if not classes:
        raise ShapeError(f"Multinomial '{node.name}': {x.type} has no classes to sample.")
    sums = ctx.scratch(rows * classes)
    add = KernelSpec.of(
        "random/multinomial.cl", "multinomial_sums", DATA_T=x.dtype.cl, STORAGE=x.dtype.storage
    )
    draw = KernelSpec.of("random/multinomial.cl", "multinomial_draw", OUT_T=y.dtype.cl)
    sizes = dict(sums=sums, rows=rows, classes=classes)
    return [
        launch(add, (rows,), x=x, **sizes),
        launch(
            draw,
            (samples, rows),
            y=y,
            samples=samples,
            **sizes,
            **key_args(node.op_as(Multinomial).key),
        ),
    ]


@register
@dataclass(frozen=True)
class Multinomial(RandomOp):
    """Samples class indices `[rows, sample_size]` with probabilities softmax(x[row]).

    A sample is the first class whose cumulative probability exceeds a uniform random number. The
    sums are float32: at the edge between two classes devices may differ.

    Attributes:
        sample_size: Number of samples per row.
        dtype: Dtype of the indices.

    Source: ONNX Multinomial, opset 7 to 22.
    """

    sample_size: int = 1
    dtype: DType = DType.INT32

    accuracy = Accuracy.EXACT
    variants = (Variant("sums", _emit, reject_float64),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        dtype = onnx_dtype(node.attrs.get("dtype", 6), cls.name)
        return cls(key_of(node), node.attrs.get("sample_size", 1), dtype)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(self.dtype, (fresh_dim(), self.sample_size))]
        if len(x.shape) != 2:
            raise ShapeError(f"Multinomial: {x} has rank {len(x.shape)}; expected 2.")
        return [TensorType(self.dtype, (x.shape[0], self.sample_size))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        wide = x.astype(np.float64)
        sums = np.cumsum(np.exp(wide - wide.max(1, initial=-np.inf, keepdims=True)), axis=1)
        u = uniforms(self.key, len(x) * self.sample_size).reshape(len(x), self.sample_size)
        drawn = [np.searchsorted(s, v * s[-1], side="right") for s, v in zip(sums, u, strict=True)]
        last = x.shape[1] - 1
        classes = np.minimum(np.asarray(drawn).reshape(u.shape), last)
        return (classes.astype(self.dtype.numpy),)
