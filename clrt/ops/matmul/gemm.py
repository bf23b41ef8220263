"""Gemm: alpha A B + beta C, where A and B may be transposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.ops.base import Types
from clrt.ops.checks import broadcast_shapes, need
from clrt.ops.gradients.shapes import sum_to
from clrt.ops.matmul.matmul import MatrixProduct, multiply
from clrt.ops.pointwise.fused import Literal
from clrt.ops.pointwise.table import Add, Mul
from clrt.ops.registry import register
from clrt.ops.traits import MemoryTraits
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


@register
@dataclass(frozen=True)
class Gemm(MatrixProduct):
    """alpha A' B' + beta C, where C broadcasts to the product.

    A' is A, or its transpose if transA is 1; B' is B, or its transpose if transB is 1. If beta is
    0, C is not read, so that its NaNs have no effect, as in BLAS.

    Numerics: as MatMul; for integers alpha and beta are truncated to integers.

    Source: ONNX Gemm, opset 7 to 13.
    """

    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0
    transB: int = 0

    memory_traits = MemoryTraits(inplace_inputs=(2,))

    def transposed(self) -> tuple[bool, bool]:
        return bool(self.transA), bool(self.transB)

    def _has_c(self, inputs: Types) -> bool:
        return len(inputs) > 2 and inputs[2] is not None and self.beta != 0

    def program(self, inputs: Types) -> tuple[ElementwiseInstruction, ...]:
        dtype = need(inputs, 0, self).dtype
        steps: list[ElementwiseInstruction] = []
        has_c = self._has_c(inputs)
        operands = 2 if has_c else 1

        def scaled(operand: int, factor: float) -> int:
            if factor == 1:
                return operand
            steps.append(ElementwiseInstruction(Literal(factor, dtype), ()))
            steps.append(ElementwiseInstruction(Mul(), (operand, operands + len(steps) - 1)))
            return operands + len(steps) - 1

        product = scaled(0, self.alpha)
        if has_c:
            steps.append(ElementwiseInstruction(Add(), (product, scaled(1, self.beta))))
        return tuple(steps)

    def extras(self, node: Node) -> list[Value]:
        return [node.arg(2)] if self._has_c(node.input_types) else []

    def infer(self, inputs: Types) -> list[TensorType]:
        product = self.product_type(inputs)
        for index in (0, 1):
            operand = need(inputs, index, self)
            if operand.rank not in (None, 2):
                raise ShapeError(f"{self.name}: operand {index} must be a matrix; it is {operand}.")
        c = inputs[2] if len(inputs) > 2 else None
        if c is not None:
            if c.dtype is not product.dtype:
                raise ShapeError(f"{self.name}: C is {c}; A and B are {product.dtype}.")
            full = broadcast_shapes([product.shape, c.shape], self)
            widened = TensorType(product.dtype, full)
            if widened.is_static and product.is_static and full != product.shape:
                raise ShapeError(f"{self.name}: C {c} does not broadcast to {product}.")
        return [product]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        a, c = node.arg(0), node.arg(1)
        (cotangent,) = cotangents
        assert cotangent is not None
        left, right = self.transA, self.transB

        def product(x: Value, y: Value, trans_x: int, trans_y: int) -> Value:
            return b(Gemm(self.alpha, 1.0, trans_x, trans_y), x, y)

        by_a = product(c, cotangent, right, 1) if left else product(cotangent, c, 0, 1 - right)
        by_b = product(cotangent, a, 1, left) if right else product(a, cotangent, 1 - left, 0)
        if not self._has_c(node.input_types):
            return [by_a, by_b]
        by_c = sum_to(b, cotangent, node.arg(2))
        if self.beta != 1:
            by_c = b("Mul", by_c, b.numbers(self.beta, by_c.dtype))
        return [by_a, by_b, by_c]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = inputs[:2]
        c = inputs[2] if len(inputs) > 2 else None
        assert a is not None and b is not None
        is_float = a.dtype.kind == "f"
        alpha, beta = (self.alpha, self.beta) if is_float else (int(self.alpha), int(self.beta))
        wide = [x.astype(np.float64) if is_float else x for x in (a, b)]
        result = multiply(wide[0], wide[1], *self.transposed())
        if alpha != 1:
            result = result * alpha
        if c is not None and self.beta != 0:
            result = result + c * np.asarray(beta, wide[0].dtype)
        return (result.astype(a.dtype),)
