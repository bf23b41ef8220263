"""Expand and Tile: repeat elements along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, Launch
from clrt.kernels.strided import broadcast_strides, contiguous_strides, copy_launches
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import broadcast_shapes, need
from clrt.ops.gradients.shapes import known_shape, sum_to
from clrt.ops.movement.common import elements, fresh_dims, length, num_elements
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, InputTraits, MemoryTraits

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


def _emit_expand(node: Node, ctx: Lowering) -> list[Launch]:
    x, y = node.arg(0), node.output
    if not num_elements(y.dims):
        return []
    source, target = broadcast_strides(x.dims, y.dims), contiguous_strides(y.dims)
    return copy_launches(ctx, BufferArg(x), BufferArg(y), x.dtype, y.dims, source, target)


@register
class Expand(Op):
    """Broadcasts x to the shape in input 1; a 1 in that shape keeps the dim of x.

    Source: ONNX Expand, opset 8 to 13.
    """

    memory_traits = MemoryTraits(is_data_movement=True)
    input_traits = InputTraits(required=(1,), plan_time=(1,))
    accuracy = Accuracy.EXACT
    supported_storages = None
    host_traits = HostTraits(evaluates_dims=True)
    variants = (Variant("strided", _emit_expand),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        wanted = elements(inputs, 1)
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        if wanted is None:
            rank = length(inputs, 1)
            shape = None if rank is None else fresh_dims(max(rank, len(x.shape)))
            return [TensorType(x.dtype, shape)]
        return [TensorType(x.dtype, broadcast_shapes([x.shape, tuple(wanted)], self))]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        return [sum_to(b, cotangent, node.arg(0))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, shape = inputs
        assert x is not None and shape is not None
        target = np.broadcast_shapes(x.shape, tuple(int(d) for d in shape))
        return (np.broadcast_to(x, target).copy(),)


def _emit_tile(node: Node, ctx: Lowering) -> list[Launch]:
    x, y = node.arg(0), node.output
    if not num_elements(y.dims):
        return []
    target = contiguous_strides(y.dims)
    shape: list[int] = []
    source_steps: list[int] = []
    target_steps: list[int] = []
    for stride, dim, goal, step in zip(
        contiguous_strides(x.dims), x.dims, y.dims, target, strict=True
    ):
        shape += [goal // dim, dim]
        source_steps += [0, stride]
        target_steps += [dim * step, step]
    return copy_launches(
        ctx, BufferArg(x), BufferArg(y), x.dtype, shape, source_steps, target_steps
    )


@register
class Tile(Op):
    """Repeats x along each axis as often as input 1, `repeats`, says for that axis.

    Source: ONNX Tile, opset 6 to 13.
    """

    memory_traits = MemoryTraits(is_data_movement=True)
    input_traits = InputTraits(required=(1,), plan_time=(1,))
    accuracy = Accuracy.EXACT
    supported_storages = None
    host_traits = HostTraits(evaluates_dims=True)
    variants = (Variant("strided", _emit_tile),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        repeats = elements(inputs, 1)
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        if repeats is None:
            return [TensorType(x.dtype, fresh_dims(len(x.shape)))]
        if len(repeats) != len(x.shape):
            raise ShapeError(f"Tile: {len(repeats)} repeats for rank {len(x.shape)} ({x}).")
        return [TensorType(x.dtype, tuple(d * r for d, r in zip(x.shape, repeats, strict=True)))]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        repeats = elements(node.input_types, 1)
        if repeats is None:
            raise UnsupportedError("its repeats depend on run-time data, which gradients need")
        pairs = zip(repeats, known_shape(node.arg(0)), strict=True)
        apart = b.reshaped(cotangent, *(d for pair in pairs for d in pair))
        axes = range(0, 2 * len(repeats), 2)
        return [b("ReduceSum", apart, b.ints(*axes), keepdims=0) if repeats else cotangent]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, repeats = inputs
        assert x is not None and repeats is not None
        return (np.tile(x, tuple(int(r) for r in repeats)),)
