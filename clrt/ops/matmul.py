"""MatMul, and what every matrix product infers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import Shape
from clrt.ir.graph import Node
from clrt.ir.op import Array, IrOp, TensorType
from clrt.kernels.spec import Lowering
from clrt.ops.base import Op, Sample, Types, broadcast_shapes, need, register
from clrt.ops.products import Product, ProductEmitter, describe, wide_matmul


def product_shape(a: Shape, b: Shape, op: IrOp) -> Shape:
    """The shape of NumPy's matmul.

    Raises:
        ShapeError: An operand is a scalar, or the inner dims differ.
    """
    if not a or not b:
        raise ShapeError(f"{op.name}: an operand is a scalar; matrices or vectors are expected.")
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    inner, other = left[-1], right[-2]
    if isinstance(inner, int) and isinstance(other, int) and inner != other:
        raise ShapeError(
            f"{op.name}: the inner dims of [{_text(a)}] and [{_text(b)}] differ "
            f"({inner} against {other})."
        )
    lead = broadcast_shapes([left[:-2], right[:-2]], op)
    rows = (left[-2],) if len(a) > 1 else ()
    columns = (right[-1],) if len(b) > 1 else ()
    return (*(lead or ()), *rows, *columns)


def _text(shape: Shape) -> str:
    return ",".join(map(str, shape))


def _describe(node: Node, ctx: Lowering) -> Product:
    return describe(node, False, False, ())


@register
@dataclass(frozen=True)
class MatMul(Op):
    """NumPy's matmul: matrices in the last two axes, the others broadcast.

    Numerics: float32 accumulation (float64 in the reference).
    Source: ONNX MatMul, opset 1 to 13.
    """

    variants = ProductEmitter(_describe, lambda node: ()).variants()

    def infer(self, inputs: Types) -> list[TensorType]:
        a, b = need(inputs, 0, self), need(inputs, 1, self)
        if a.dtype is not b.dtype:
            raise ShapeError(f"MatMul: operands must have one dtype; they are {a} and {b}.")
        known = a.shape is not None and b.shape is not None
        shape = product_shape(a.shape, b.shape, self) if known else None  # type: ignore[arg-type]
        return [TensorType(a.dtype, shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = inputs
        assert a is not None and b is not None
        return (wide_matmul(a, b),)

    def flops(self, inputs: Types, outputs: Types) -> int:
        a, y = need(inputs, 0, self), need(outputs, 0, self)
        return (
            2 * int(np.prod([int(str(d)) for d in y.shape or ()])) * int(str((a.shape or (0,))[-1]))
        )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(2)
        shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
            ((m, k), (k, n))
            for m in (1, 3, 4, 5, 9) for k in (1, 7, 32) for n in (1, 7, 8, 23, 24, 25, 49)
        ]  # fmt: skip
        shapes += [
            ((7,), (7,)), ((7,), (7, 5)), ((5, 7), (7,)), ((2, 3, 5, 7), (7, 9)),
            ((2, 3, 5, 7), (2, 3, 7, 9)), ((2, 1, 5, 7), (3, 7, 9)), ((5, 7), (4, 7, 9)),
            ((2, 1, 5, 7), (1, 4, 7, 9)), ((0, 4), (4, 3)), ((3, 0), (0, 2)),
        ]  # fmt: skip
        for a, b in shapes:
            yield Sample(cls(), (_draw(rng, a), _draw(rng, b)))
        yield Sample(cls(), (rng.integers(-9, 9, (3, 4)), rng.integers(-9, 9, (4, 5))))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        rng = np.random.default_rng(2)
        yield Sample(cls(), (_draw(rng, (2, 3)), _draw(rng, (4, 5)))), ShapeError
        yield Sample(cls(), (_draw(rng, ()), _draw(rng, (4, 5)))), ShapeError


def _draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape).astype(np.float32)
