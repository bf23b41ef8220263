"""Concat and Split: join tensors along an axis, and split a tensor along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from clrt.errors import ModelError, ShapeError
from clrt.ir.dim_operations import floordiv, mod
from clrt.ir.dims import Dim, provably_different, provably_equal
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import Launch
from clrt.kernels.strided import StridedCopy, copy_parts
from clrt.kernels.subview import Subview
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.gradients.shapes import filled_like, known_shape
from clrt.ops.movement.common import elements, fresh_dim, has_input, length, num_elements
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, InputTraits, MemoryTraits, OnnxTraits
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


def _emit_concat(node: Node, ctx: Lowering) -> list[Launch]:
    op = node.op_as(Concat)
    y = node.output
    axis = normalize_axis(op.axis, len(y.dims), op)
    parts = [StridedCopy.into(p) for p in op.subviews(node)]
    return copy_parts(
        ctx, parts, y.dtype, num_elements(y.dims[:axis]), ctx.aliased_subviews_of(node)
    )


def _adjacent_subviews(axis: int, whole: Value, values: Sequence[Value | None]) -> list[Subview]:
    """Returns each of `values` as a subview of `whole`; the subviews are adjacent along `axis`."""
    parts, at, pitch = [], 0, num_elements(whole.dims[axis:])
    for value in values:
        assert value is not None
        width = num_elements(value.dims[axis:])
        parts.append(Subview(value, whole, at, width, pitch))
        at += width
    return parts


@register
@dataclass(frozen=True)
class Concat(Op):
    """Concatenates the inputs along `axis`. Source: ONNX Concat, opset 4 to 13."""

    axis: int = 0

    memory_traits = MemoryTraits(partially_writes_output=True)
    accuracy = Accuracy.EXACT
    supported_storages = None
    host_traits = HostTraits(evaluates_dims=True)
    variants = (Variant("strided", _emit_concat),)

    def infer(self, inputs: Types) -> list[TensorType]:
        types = [need(inputs, i, self) for i in range(max(len(inputs), 1))]
        dtype = types[0].dtype
        if any(t.dtype is not dtype for t in types):
            raise ShapeError(f"Concat: the dtypes of {_listed(types)} differ.")
        shapes = [t.shape for t in types if t.shape is not None]
        if not shapes:
            return [TensorType(dtype, None)]
        rank = len(shapes[0])
        axis = normalize_axis(self.axis, rank, self)
        result: list[Dim] = list(shapes[0])
        for shape in shapes[1:]:
            if len(shape) != rank:
                raise ShapeError(f"Concat: the ranks of {_listed(types)} differ.")
            for i, dim in enumerate(shape):
                if i == axis:
                    result[i] = result[i] + dim
                elif provably_different(dim, result[i]):
                    text = _listed(types)
                    raise ShapeError(f"Concat: axis {i} of {text} differs; only axis {axis} may.")
                elif isinstance(dim, int):
                    result[i] = dim
        if len(shapes) < len(types):
            result[axis] = fresh_dim()
        return [TensorType(dtype, tuple(result))]

    def subviews(self, node: Node) -> list[Subview]:
        y = node.output
        return _adjacent_subviews(normalize_axis(self.axis, len(y.dims), self), y, node.inputs)

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        axis = normalize_axis(self.axis, len(known_shape(cotangent)), self)
        sizes = [known_shape(v)[axis] for v in node.inputs if v is not None]
        return b.add_all(Split(axis, outputs=len(sizes)), cotangent, b.dims(sizes))

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (np.concatenate([x for x in inputs if x is not None], axis=self.axis),)


def _emit_split(node: Node, ctx: Lowering) -> list[Launch]:
    op = node.op_as(Split)
    x = node.arg(0)
    axis = normalize_axis(op.axis, len(x.dims), op)
    parts = [StridedCopy.out_of(p) for p in op.subviews(node)]
    return copy_parts(
        ctx, parts, x.dtype, num_elements(x.dims[:axis]), ctx.aliased_subviews_of(node)
    )


# Maximum number of outputs: each is named in the file and gets a type.
_MAX_PARTS = 1 << 20


@register
@dataclass(frozen=True)
class Split(Op):
    """Splits x along `axis` into parts of equal size, or of the sizes in optional input 1.

    Attributes:
        axis: Axis to split.
        num_outputs: Number of equal parts, of which the last may be smaller; None if input 1 holds
            the sizes.
        outputs: Number of parts if input 1 holds the sizes.

    Source: ONNX Split, opset 2 to 18; the sizes became an input in 13.
    """

    axis: int = 0
    num_outputs: int | None = None
    outputs: int = 1

    onnx_traits = OnnxTraits(
        attribute_to_input={"split": (1, np.int64)}, non_attribute_fields=frozenset({"outputs"})
    )
    memory_traits = MemoryTraits(is_data_movement=True, partially_read_input=0)
    input_traits = InputTraits(plan_time=(1,))
    accuracy = Accuracy.EXACT
    supported_storages = None
    host_traits = HostTraits(evaluates_dims=True)
    variants = (Variant("strided", _emit_split),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        op = super().from_onnx(node)
        assert isinstance(op, cls)
        if any(node.inputs[1:2]):
            return replace(op, num_outputs=None, outputs=len(node.outputs))
        if op.num_outputs not in (None, 0, len(node.outputs)):
            raise ModelError(
                f"Split: num_outputs is {op.num_outputs}, and it has {len(node.outputs)} outputs."
            )
        return op if op.num_outputs else replace(op, num_outputs=len(node.outputs))

    def sizes(self, dim: Dim, wanted: Sequence[Dim] | None) -> list[Dim]:
        """Returns the size of each output along the axis.

        Args:
            dim: Size of the axis.
            wanted: Requested sizes; None to divide by `num_outputs`.

        Raises:
            ShapeError: The sizes do not add up to `dim`, or the axis is too short for
                `num_outputs`.
        """
        if wanted is not None:
            total = sum(wanted)
            if provably_different(total, dim):
                parts = ",".join(map(str, wanted))
                raise ShapeError(f"Split: sizes [{parts}] add up to {total}; the axis has {dim}.")
            return list(wanted)
        number = self.num_outputs or 1
        even = provably_equal(mod(dim, number), 0)
        size = floordiv(dim, number) if even else floordiv(dim + (number - 1), number)
        last = dim - size * (number - 1)
        if isinstance(last, int) and last < 0:
            raise ShapeError(f"Split: an axis of {dim} has no {number} parts.")
        return [size] * (number - 1) + [last]

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        wanted = elements(inputs, 1)
        unknown = wanted is None and has_input(inputs, 1)
        parts = length(inputs, 1) if unknown else None
        max_outputs = max(parts or 0, self.num_outputs or 0, self.outputs)
        if max_outputs > _MAX_PARTS:
            raise ModelError(f"Split: it has {max_outputs} outputs; {_MAX_PARTS} are allowed.")
        if x.shape is None:
            num_parts = (
                len(wanted) if wanted is not None else parts or self.num_outputs or self.outputs
            )
            return [TensorType(x.dtype, None) for _ in range(num_parts)]
        axis = normalize_axis(self.axis, len(x.shape), self)
        if unknown:
            sizes: list[Dim] = [fresh_dim() for _ in range(parts or self.outputs)]
        else:
            sizes = self.sizes(x.shape[axis], wanted)
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        return [TensorType(x.dtype, (*before, size, *after)) for size in sizes]

    def subviews(self, node: Node) -> list[Subview]:
        x = node.arg(0)
        return _adjacent_subviews(normalize_axis(self.axis, len(x.dims), self), x, node.outputs)

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        pairs = zip(node.outputs, cotangents, strict=True)
        return [b(Concat(self.axis), *(filled_like(b, 0, v) if c is None else c for v, c in pairs))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, split = inputs[0], inputs[1] if len(inputs) > 1 else None
        assert x is not None
        axis = normalize_axis(self.axis, x.ndim, self)
        wanted = None if split is None else [int(s) for s in split]
        ends = np.cumsum([int(s) for s in self.sizes(x.shape[axis], wanted)])
        return tuple(np.ascontiguousarray(p) for p in np.split(x, ends[:-1], axis))


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))
