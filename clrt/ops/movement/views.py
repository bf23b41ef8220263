"""Ops that only change the shape: Reshape, Flatten, Squeeze, Unsqueeze, Identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dim_operations import floordiv, mod
from clrt.ir.dims import Dim, Shape, product, provably_different, provably_equal
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.runtime_values import RuntimeValue
from clrt.ops.base import Accuracy, HostContext, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.gradients.shapes import reshaped_like
from clrt.ops.movement.common import elements, fresh_dims, has_input, length
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, InputTraits, MemoryTraits, OnnxTraits
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


class View(Op):
    """Base of ops whose output shares the memory of input 0, with another shape."""

    memory_traits = MemoryTraits(always_view=True, is_data_movement=True)
    host_traits = HostTraits(evaluates_dims=True)
    accuracy = Accuracy.EXACT
    supported_storages = None

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        return [cotangent and reshaped_like(b, cotangent, node.arg(0))]


@register
class Identity(View):
    """Returns x. Source: ONNX Identity, opset 1 to 25."""

    def infer(self, inputs: Types) -> list[TensorType]:
        return [need(inputs, 0, self)]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        return inputs

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        return (x,)


@register
@dataclass(frozen=True)
class Reshape(View):
    """Changes the shape of x to that in input 1: -1 is inferred, 0 keeps the dim of x.

    -1 is inferred from the dims that x and the new shape do not share, also if x has no elements.

    Attributes:
        allowzero: 1 if a 0 in input 1 is a dim of size 0, instead of keeping the dim of x.

    Source: ONNX Reshape, opset 5 to 25.
    """

    allowzero: int = 0

    input_traits = InputTraits(required=(1,), plan_time=(1,))

    def target(self, shape: Shape, wanted: Sequence[Dim]) -> Shape:
        """Returns the output shape.

        Args:
            shape: Shape of x.
            wanted: Elements of input 1: dims, 0 or -1.

        Raises:
            ShapeError: The number of elements differs, a dim is below -1, there are two dims of -1,
                or a 0 is beyond the rank of x.
        """
        holes = [i for i, d in enumerate(wanted) if provably_equal(d, -1)]
        result: list[Dim] = []
        for i, dim in enumerate(wanted):
            if provably_equal(dim, 0) and not self.allowzero:
                if i >= len(shape):
                    raise _error(shape, wanted, f"the 0 at {i} is outside the input's rank")
                dim = shape[i]
            elif isinstance(dim, int) and dim < -1:
                raise _error(shape, wanted, f"{dim} is not a valid dim")
            result.append(dim)
        if len(holes) > 1:
            raise _error(shape, wanted, "only one dim can be -1")
        unmatched = list(shape)
        others: list[Dim] = []
        for i, dim in enumerate(result):
            match = next((k for k, d in enumerate(unmatched) if provably_equal(d, dim)), None)
            if i in holes:
                continue
            if match is None:
                others.append(dim)
            else:
                del unmatched[match]
        have, needed = product(unmatched), product(others)
        if holes:
            if provably_equal(needed, 0) or provably_different(mod(have, needed), 0):
                raise _error(shape, wanted, "the number of elements is not divisible")
            result[holes[0]] = floordiv(have, needed)
        elif provably_different(have, needed):
            # A shared dim of 0 makes both sides empty.
            empty = any(provably_equal(d, 0) for d in shape) and any(
                provably_equal(d, 0) for d in result
            )
            if not empty:
                raise _error(shape, wanted, "the numbers of elements differ")
        return tuple(result)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        wanted = elements(inputs, 1)
        if wanted is None:
            rank = length(inputs, 1)
            return [TensorType(x.dtype, None if rank is None else fresh_dims(rank))]
        if x.shape is None:
            simple = not any(isinstance(d, int) and d <= 0 for d in wanted)
            return [TensorType(x.dtype, tuple(wanted) if simple else fresh_dims(len(wanted)))]
        return [TensorType(x.dtype, self.target(x.shape, wanted))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, shape = inputs
        assert x is not None and shape is not None
        return (x.reshape(self.target(x.shape, [int(d) for d in shape])),)


@register
@dataclass(frozen=True)
class Flatten(View):
    """Reshapes x to a matrix: the axes before `axis` become its rows, the others its columns.

    Source: ONNX Flatten, opset 1 to 25.
    """

    axis: int = 1

    def target(self, shape: Shape) -> Shape:
        """Returns the output shape: (product of dims before `axis`, product of the other dims)."""
        rank = len(shape)
        axis = rank if self.axis == rank else normalize_axis(self.axis, rank, self)
        return (product(shape[:axis]), product(shape[axis:]))

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        return [TensorType(x.dtype, fresh_dims(2) if x.shape is None else self.target(x.shape))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        rows, columns = self.target(x.shape)
        return (x.reshape(int(rows), int(columns)),)


@register
@dataclass(frozen=True)
class Squeeze(View):
    """Removes axes of size 1: the axes in optional input 1, by default all of size 1.

    Source: ONNX Squeeze, opset 1 to 25; axes became an input in 13.
    """

    onnx_traits = OnnxTraits(attribute_to_input={"axes": (1, np.int64)})
    input_traits = InputTraits(plan_time=(1,))

    def target(self, shape: Shape, axes: Sequence[int]) -> Shape:
        """Returns `shape` without axes of size 1.

        Args:
            shape: Shape of x.
            axes: Axes to remove; empty for all of size 1.

        Raises:
            ShapeError: An axis is out of range, or its size is not 1.
        """
        if not axes:
            return tuple(d for d in shape if not provably_equal(d, 1))
        gone = {normalize_axis(a, len(shape), self) for a in axes}
        for axis in gone:
            dim = shape[axis]
            if provably_different(dim, 1):
                raise ShapeError(f"Squeeze: axis {axis} has {dim} elements; expected 1.")
        return tuple(d for i, d in enumerate(shape) if i not in gone)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        axes = elements(inputs, 1)
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        if axes:
            return [TensorType(x.dtype, self.target(x.shape, [int(a) for a in axes]))]
        if has_input(inputs, 1) and axes is None:
            gone = length(inputs, 1)
            rank = len(x.shape) - gone if gone else None
            return [TensorType(x.dtype, None if rank is None else fresh_dims(rank))]
        # If a dim may be 1, the output rank is unknown.
        known = all(isinstance(d, int) for d in x.shape)
        return [TensorType(x.dtype, self.target(x.shape, []) if known else None)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, axes = inputs[0], inputs[1] if len(inputs) > 1 else None
        assert x is not None
        wanted = self.target(x.shape, [] if axes is None else [int(a) for a in axes.reshape(-1)])
        return (x.reshape(tuple(int(d) for d in wanted)),)


@register
@dataclass(frozen=True)
class Unsqueeze(View):
    """Inserts axes of size 1 at the positions in input 1, which are positions in the output.

    Source: ONNX Unsqueeze, opset 1 to 25; axes became an input in 13.
    """

    onnx_traits = OnnxTraits(attribute_to_input={"axes": (1, np.int64)})
    input_traits = InputTraits(required=(1,), plan_time=(1,))

    def target(self, shape: Shape, axes: Sequence[int]) -> Shape:
        """Returns `shape` with axes of size 1 inserted.

        Args:
            shape: Shape of x.
            axes: Positions of the new axes in the result.

        Raises:
            ShapeError: An axis is out of range or repeated.
        """
        rank = len(shape) + len(axes)
        new = {normalize_axis(a, rank, self) for a in axes}
        if len(new) != len(axes):
            raise ShapeError(f"Unsqueeze: axes {list(axes)} name one axis twice (rank {rank}).")
        kept = iter(shape)
        return tuple(1 if i in new else next(kept) for i in range(rank))

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        axes = elements(inputs, 1)
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        if axes is None:
            more = length(inputs, 1)
            rank = None if more is None else len(x.shape) + more
            return [TensorType(x.dtype, None if rank is None else fresh_dims(rank))]
        return [TensorType(x.dtype, self.target(x.shape, [int(a) for a in axes]))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, axes = inputs
        assert x is not None and axes is not None
        wanted = self.target(x.shape, [int(a) for a in axes.reshape(-1)])
        return (x.reshape(tuple(int(d) for d in wanted)),)


def _error(shape: Shape, wanted: Sequence[Dim], trouble: str) -> ShapeError:
    """Returns the error for an invalid Reshape of `shape` to `wanted`; `trouble` is the reason."""
    to = f"[{','.join(map(str, shape))}] to [{','.join(map(str, wanted))}]"
    return ShapeError(f"Reshape: {to}: {trouble}.")
