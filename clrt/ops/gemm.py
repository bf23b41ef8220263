"""Gemm: alpha A B + beta C of matrices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.graph import Node
from clrt.ir.op import Array, Step, TensorType
from clrt.kernels.spec import Lowering
from clrt.ops.base import Op, Sample, Types, broadcast_shapes, need, register
from clrt.ops.fused import Literal
from clrt.ops.matmul import product_shape
from clrt.ops.pointwise import Add, Mul
from clrt.ops.products import Product, ProductEmitter, describe, epilogue_operand_fits, wide_matmul


def _steps(node: Node) -> tuple[Step, ...]:
    assert isinstance(node.op, Gemm)
    return node.op.epilogue(node.input(2) is not None, node.output.type)


def _describe(node: Node, ctx: Lowering) -> Product:
    assert isinstance(node.op, Gemm)
    bias = node.input(2)
    if bias is not None and not epilogue_operand_fits(bias, node.output):
        raise UnsupportedError(f"C {bias.type} is neither a row nor of the output's shape")
    return describe(node, bool(node.op.transA), bool(node.op.transB), _steps(node))


@register
@dataclass(frozen=True)
class Gemm(Op):
    """alpha A' B' + beta C, A' and B' transposed as told; C broadcasts.

    Source: ONNX Gemm, opset 7 to 13.
    """

    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0
    transB: int = 0

    variants = ProductEmitter(_describe, _steps).variants()

    def epilogue(self, has_bias: bool, type_: TensorType) -> tuple[Step, ...]:
        """alpha v0 + beta v1 as steps."""
        steps: list[Step] = []
        operands = 2 if has_bias else 1

        def scaled(operand: int, factor: float) -> int:
            if factor == 1.0:
                return operand
            steps.append(Step(Literal(factor, type_.dtype), ()))
            steps.append(Step(Mul(), (operand, operands + len(steps) - 1)))
            return operands + len(steps) - 1

        product = scaled(0, self.alpha)
        if has_bias:
            steps.append(Step(Add(), (product, scaled(1, self.beta))))
        return tuple(steps)

    def infer(self, inputs: Types) -> list[TensorType]:
        a, b = need(inputs, 0, self), need(inputs, 1, self)
        if a.shape is None or b.shape is None:
            return [TensorType(a.dtype, None)]
        if len(a.shape) != 2 or len(b.shape) != 2:
            raise ShapeError(f"Gemm: operands must be matrices; they are {a} and {b}.")
        left = a.shape[::-1] if self.transA else a.shape
        right = b.shape[::-1] if self.transB else b.shape
        shape = product_shape(left, right, self)
        if len(inputs) > 2 and (bias := inputs[2]) is not None:
            broadcast_shapes([bias.shape, shape], self)
        return [TensorType(a.dtype, shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b, *rest = inputs
        assert a is not None and b is not None
        left, right = (a.T if self.transA else a), (b.T if self.transB else b)
        product = wide_matmul(left, right) * np.asarray(self.alpha, a.dtype)
        if rest and rest[0] is not None:
            product = product + np.asarray(self.beta, a.dtype) * rest[0]
        return (product.astype(a.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(4)

        def draw(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(np.float32)

        for m, k, n in ((1, 5, 3), (4, 8, 24), (13, 7, 33)):
            yield Sample(cls(), (draw(m, k), draw(k, n), draw(n)))
            yield Sample(cls(0.5, 2.0, 1, 1), (draw(k, m), draw(n, k), draw(m, n)))
            yield Sample(cls(alpha=0.25, transB=1), (draw(m, k), draw(n, k), None))
            yield Sample(cls(transA=1), (draw(k, m), draw(k, n), draw(1)))
