"""FusedMatMul: a matrix product with an elementwise program behind it, as one kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import same_shape
from clrt.ir.dtypes import WIDENED_STORAGES, DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, Step, TensorType
from clrt.kernels.product import epilogue_operand_fits
from clrt.ops.base import Accuracy, Op, Sample, Types, broadcast_shapes, register
from clrt.ops.fused import Fused, Literal, step_types
from clrt.ops.matmul import SAMPLE_SHAPES, MatrixProduct, multiply

__all__ = ["FusedMatMul", "epilogue_operand_fits"]


def fused_type(
    op: Op, steps: Sequence[Step], product: TensorType, extras: Sequence[TensorType]
) -> TensorType:
    """The type of a program over a product and the extras, which must not widen it.

    Raises:
        ShapeError: An extra does.
    """
    result = step_types(steps, [product, *extras])[-1] if steps else product
    full = broadcast_shapes([product.shape, *(t.shape for t in extras)], op)
    if product.shape is not None and full is not None and len(full) != len(product.shape):
        raise ShapeError(f"{op.name}: an operand widens the product {product}.")
    static = TensorType(product.dtype, full).is_static and product.is_static
    if static and not same_shape(full, product.shape):
        raise ShapeError(f"{op.name}: an operand widens the product {product}.")
    return TensorType(result.dtype, product.shape)


def fused_reference(steps: Sequence[Step], product: Array, extras: Sequence[Array | None]) -> Array:
    """A program over a product and the extras."""
    if not steps:
        return product
    (result,) = Fused(tuple(steps)).reference(product, *extras)
    return np.broadcast_to(result, product.shape).copy()


@register
@dataclass(frozen=True)
class FusedMatMul(MatrixProduct):
    """The program `steps` over A B (operand 0) and the extras (1, 2, …); the last step is stored.

    B may be stored in float16 or bfloat16 where A is float32: a constant that is made small.
    The extras broadcast to the product and never widen it; `epilogue_operand_fits` tells which
    have a kernel.

    Attributes:
        trans_a: Swap the last two axes of A.
        trans_b: Swap the last two axes of B.

    Source: clrt.
    """

    trans_a: int = 0
    trans_b: int = 0
    steps: tuple[Step, ...] = ()

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    storages = WIDENED_STORAGES
    narrow = frozenset({DType.FLOAT16, DType.BFLOAT16})
    # An element is read, computed and stored by one work-item; A and B are read by many.
    in_place = tuple(range(2, 64))

    def transposed(self) -> tuple[bool, bool]:
        return bool(self.trans_a), bool(self.trans_b)

    def program(self, inputs: Types) -> tuple[Step, ...]:
        return self.steps

    def extras(self, node: Node) -> list[Value]:
        return [v for v in node.inputs[2:] if v is not None]

    def infer(self, inputs: Types) -> list[TensorType]:
        extras = [t for t in inputs[2:] if t is not None]
        return [fused_type(self, self.steps, self.product_type(inputs), extras)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b, *extras = inputs
        assert a is not None and b is not None
        return (fused_reference(self.steps, multiply(a, b, *self.transposed()), extras),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        from clrt.ops.pointwise import Add, Gelu, Mul, Relu, Where

        rng = np.random.default_rng(9)

        def make(op: Op, *shapes: tuple[int, ...]) -> Sample:
            return Sample(op, tuple(rng.standard_normal(s).astype(np.float32) for s in shapes))

        bias = (Step(Add(), (0, 1)),)
        gelu = (*bias, Step(Gelu(), (2,)))
        residual = (Step(Add(), (0, 1)), Step(Add(), (3, 2)))
        scaled = (Step(Literal(0.125), ()), Step(Mul(), (0, 1)), Step(Relu(), (2,)))
        for a, b in SAMPLE_SHAPES:
            yield make(cls(steps=scaled), a, b)
        for n in (1, 7, 16, 24, 33):
            yield make(cls(steps=gelu), (5, 11), (11, n), (n,))
            yield make(cls(steps=residual), (2, 5, 11), (11, n), (n,), (2, 5, n))
        extras: list[tuple[int, ...]] = [(), (1,), (6, 1), (3, 6, 1), (2, 1, 1, 1), (2, 3, 6, 9)]
        for shape in [*extras, (2, 1, 6, 9), (1, 9)]:
            yield make(cls(steps=bias), (2, 3, 6, 5), (2, 3, 5, 9), shape)
            yield make(cls(steps=bias), (2, 3, 6, 5), (5, 9), shape)
        yield make(cls(steps=bias), (3, 5), (5,), (3,))
        yield make(cls(steps=bias), (5,), (5, 3), (3,))
        for trans in [(1, 0), (0, 1), (1, 1)]:
            for batch in [(), (2,), (2, 3)]:
                a, b = ((5, 4) if trans[0] else (4, 5)), ((9, 5) if trans[1] else (5, 9))
                yield make(cls(*trans, bias), (*batch, *a), (*batch, *b), (9,))
                yield make(cls(*trans), (*batch, *a), b)
        where = (Step(Where(), (1, 0, 2)),)
        mask = rng.integers(0, 2, (4, 9)).astype(bool)
        plain = make(cls(steps=where), (4, 5), (5, 9), ())
        yield Sample(plain.op, (*plain.inputs[:2], mask, plain.inputs[2]))
        half = tuple(rng.standard_normal(s).astype(np.float16) for s in [(4, 5), (5, 9), (9,)])
        yield Sample(cls(steps=gelu), half)
        for dtype in (DType.FLOAT16, DType.BFLOAT16):
            for m, n in ((1, 24), (5, 25), (13, 50)):
                for trans_b in (0, 1):
                    plain = make(
                        cls(0, trans_b, bias), (m, 11), (n, 11) if trans_b else (11, n), (n,)
                    )
                    x, w, c = plain.inputs
                    assert w is not None
                    yield Sample(plain.op, (x, w.astype(dtype.numpy), c))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        from clrt.ops.pointwise import Add

        bias = cls(steps=(Step(Add(), (0, 1)),))
        a, b = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
        for shape in [(3,), (5, 2, 4), (1, 2, 4)]:
            yield Sample(bias, (a, b, np.zeros(shape, np.float32))), ShapeError
