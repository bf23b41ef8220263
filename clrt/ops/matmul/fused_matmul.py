"""FusedMatMul: a matrix product with an elementwise program behind it, as one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import same_shape
from clrt.ir.dtypes import WIDENED_STORAGES, DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, Step, TensorType
from clrt.kernels.product import epilogue_operand_fits
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import broadcast_shapes
from clrt.ops.matmul.matmul import MatrixProduct, multiply
from clrt.ops.pointwise.fused import Fused, step_types
from clrt.ops.registry import register

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
