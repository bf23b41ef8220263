"""Gemm: alpha A B + beta C with optional transposes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, Step, TensorType
from clrt.ops.base import Sample, Types, broadcast_shapes, need, register
from clrt.ops.fused import Literal
from clrt.ops.matmul import MatrixProduct, multiply
from clrt.ops.pointwise import Add, Mul


@register
@dataclass(frozen=True)
class Gemm(MatrixProduct):
    """alpha A' B' + beta C, where A' and B' may be transposed and C broadcasts to the product.

    beta = 0 leaves C out, whatever it holds, as BLAS does.

    Numerics: as MatMul; for integers alpha and beta are truncated to integers.
    Source: ONNX Gemm, opset 7 to 13.
    """

    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0
    transB: int = 0

    in_place = (2,)

    def transposed(self) -> tuple[bool, bool]:
        return bool(self.transA), bool(self.transB)

    def _has_c(self, inputs: Types) -> bool:
        return len(inputs) > 2 and inputs[2] is not None and self.beta != 0

    def program(self, inputs: Types) -> tuple[Step, ...]:
        dtype = need(inputs, 0, self).dtype
        steps: list[Step] = []
        has_c = self._has_c(inputs)
        operands = 2 if has_c else 1

        def scaled(operand: int, factor: float) -> int:
            if factor == 1:
                return operand
            steps.append(Step(Literal(factor, dtype), ()))
            steps.append(Step(Mul(), (operand, operands + len(steps) - 1)))
            return operands + len(steps) - 1

        product = scaled(0, self.alpha)
        if has_c:
            steps.append(Step(Add(), (product, scaled(1, self.beta))))
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

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(6)
        for trans_a, trans_b in [(0, 0), (1, 0), (0, 1), (1, 1)]:
            for m, n, k in [(1, 1, 1), (5, 23, 7), (4, 24, 16), (65, 66, 17), (3, 2, 0), (0, 2, 3)]:
                a = rng.standard_normal((k, m) if trans_a else (m, k)).astype(np.float32)
                b = rng.standard_normal((n, k) if trans_b else (k, n)).astype(np.float32)
                yield Sample(cls(0.5, 1.0, trans_a, trans_b), (a, b))
                for shape in [(n,), (1, n), (m, 1), (1,), (), (m, n)]:
                    c = rng.standard_normal(shape).astype(np.float32)
                    yield Sample(cls(0.5, 2.0, trans_a, trans_b), (a, b, c))
        whole = [rng.integers(0, 9, s) for s in [(3, 4), (4, 5), (5,)]]
        yield Sample(cls(2.0, 3.0), tuple(x.astype(np.int32) for x in whole))
        nan = np.full((5,), np.nan, np.float32)
        yield Sample(cls(1.0, 0.0), (*(x.astype(np.float32) for x in whole[:2]), nan))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        a, b = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
        yield Sample(cls(), (a, a)), ShapeError
        yield Sample(cls(), (a[None], b)), ShapeError
        yield Sample(cls(), (a, b, np.zeros((3, 4), np.float32))), ShapeError
