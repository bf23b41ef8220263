"""Transpose: permutes axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.errors import ModelError, ShapeError
from clrt.ir.dims import Shape, provably_equal
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, Launch
from clrt.kernels.strided import contiguous_strides, copy_launches
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.gradients.shapes import known_shape
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y = node.arg(0), node.output
    op = node.op_as(Transpose)
    strides = contiguous_strides(x.dims)
    moved = [strides[axis] for axis in op.order(len(x.dims))]
    return copy_launches(
        ctx, BufferArg(x), BufferArg(y), x.dtype, y.dims, moved, contiguous_strides(y.dims)
    )


@register
@dataclass(frozen=True)
class Transpose(Op):
    """Permutes axes: axis k of the output is axis `perm[k]` of x.

    Attributes:
        perm: Permutation of the axes; None to reverse all axes.

    Source: ONNX Transpose, opset 1 to 25.
    """

    perm: tuple[int, ...] | None = None

    memory_traits = MemoryTraits(is_data_movement=True)
    accuracy = Accuracy.EXACT
    supported_storages = None
    host_traits = HostTraits(evaluates_dims=True)
    variants = (Variant("strided", _emit),)

    def __post_init__(self) -> None:
        super().__post_init__()
        perm = self.perm
        if perm is not None and sorted(perm) != list(range(len(perm))):
            raise ModelError(
                f"Transpose: attribute 'perm' is {list(perm[:9])}, not a permutation of the axes; "
                "export the model again."
            )

    def order(self, rank: int) -> tuple[int, ...]:
        """Returns the permutation for an input of rank `rank`: `perm`, by default reversed axes."""
        return tuple(reversed(range(rank))) if self.perm is None else self.perm

    def moves_ones(self, shape: Shape) -> bool:
        """Returns whether only axes of size 1 of a `shape` change their order.

        The elements then keep their order in memory.
        """
        larger_axes = [a for a in self.order(len(shape)) if not provably_equal(shape[a], 1)]
        return larger_axes == sorted(larger_axes)

    def is_view(self, inputs: Types) -> bool:
        (x,) = inputs
        return x is not None and x.shape is not None and self.moves_ones(x.shape)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        order = self.order(len(x.shape))
        if len(order) != len(x.shape):
            raise ShapeError(f"Transpose: perm {list(order)} does not permute the axes of {x}.")
        return [TensorType(x.dtype, tuple(x.shape[a] for a in order))]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        order = self.order(len(known_shape(cotangent)))
        return [b(Transpose(tuple(order.index(a) for a in range(len(order)))), cotangent)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        return (np.ascontiguousarray(x.transpose(self.order(x.ndim))),)
