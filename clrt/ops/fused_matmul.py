"""FusedMatMul: a matrix product with what follows it elementwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.ir.dims import Shape
from clrt.ir.graph import Node
from clrt.ir.op import Array, Step, TensorType
from clrt.kernels.spec import Lowering
from clrt.ops.base import Op, Sample, Types, need, register
from clrt.ops.fused import Literal, step_types
from clrt.ops.matmul import product_shape
from clrt.ops.pointwise import Add, Gelu, Mul
from clrt.ops.products import Product, ProductEmitter, describe, epilogue_operand_fits, wide_matmul


def _steps(node: Node) -> tuple[Step, ...]:
    assert isinstance(node.op, FusedMatMul)
    return node.op.steps


def _describe(node: Node, ctx: Lowering) -> Product:
    assert isinstance(node.op, FusedMatMul)
    return describe(node, bool(node.op.trans_a), bool(node.op.trans_b), node.op.steps)


def _swapped(shape: Shape, swap: int) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if swap and len(shape) > 1 else shape


@register
@dataclass(frozen=True)
class FusedMatMul(Op):
    """matmul(a, b, extras…) followed by elementwise steps over (product, extras…).

    Source: clrt.
    """

    trans_a: int = 0
    trans_b: int = 0
    steps: tuple[Step, ...] = ()

    domain = "clrt"
    in_place = tuple(range(2, 34))
    variants = ProductEmitter(_describe, _steps).variants()

    def infer(self, inputs: Types) -> list[TensorType]:
        a, b = need(inputs, 0, self), need(inputs, 1, self)
        shape = None
        if a.shape is not None and b.shape is not None:
            left, right = _swapped(a.shape, self.trans_a), _swapped(b.shape, self.trans_b)
            shape = product_shape(left, right, self)
        product = TensorType(a.dtype, shape)
        extras = [t for t in inputs[2:] if t is not None]
        return [step_types(self.steps, [product, *extras])[-1] if self.steps else product]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b, *extras = inputs
        assert a is not None and b is not None
        left = a.swapaxes(-1, -2) if self.trans_a and a.ndim > 1 else a
        right = b.swapaxes(-1, -2) if self.trans_b and b.ndim > 1 else b
        values: list[Array | None] = [wide_matmul(left, right), *extras]
        if not self.steps:
            return (values[0],)  # type: ignore[return-value]
        for step in self.steps:
            assert isinstance(step.op, Op)
            values.append(step.op.reference(*(values[i] for i in step.args))[0])
        result = values[-1]
        assert result is not None
        return (result,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(6)

        def draw(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(np.float32)

        bias = (Step(Add(), (0, 1)),)
        gelu = (*bias, Step(Gelu(), (2,)))
        residual = (Step(Add(), (0, 1)), Step(Add(), (3, 2)))
        half = (Step(Literal(0.5), ()), Step(Mul(), (0, 1)))
        for n in (1, 7, 8, 9, 23, 24, 25, 48):
            yield Sample(cls(steps=gelu), (draw(2, 5, 12), draw(12, n), draw(n)))
            yield Sample(cls(steps=residual), (draw(2, 5, 12), draw(12, n), draw(n), draw(2, 5, n)))
            yield Sample(cls(trans_b=1, steps=half), (draw(3, 4, 12), draw(3, n, 12)))
            yield Sample(cls(trans_a=1, steps=bias), (draw(3, 12, 6), draw(3, 12, n), draw(1)))
            yield Sample(cls(1, 1), (draw(2, 3, 12, 6), draw(3, n, 12)))


__all__ = ["FusedMatMul", "epilogue_operand_fits"]
