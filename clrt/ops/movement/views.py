"""Ops that keep every element in its place: Reshape, Flatten, Squeeze, Unsqueeze, Identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dim_operations import floordiv, mod
from clrt.ir.dims import Dim, Shape, product, provably_different, provably_equal
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, HostContext, Op, RuntimeValue, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.movement.common import Promoted, elements, fresh_dims, given, length
from clrt.ops.registry import register


class View(Op):
    """Base of the ops whose output is the memory of input 0."""

    always_view = True
    is_data_movement = True
    evaluates_dims = True
    accuracy = Accuracy.EXACT
    supported_storages = None


@register
class Identity(View):
    """y = x. Source: ONNX Identity, opset 1 to 25."""

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
    """x with another shape: one -1 takes what is left, 0 keeps a dim of x (unless allowzero).

    Source: ONNX Reshape, opset 5 to 25. Where x has no elements, -1 is what remains after the
    dims that x and the target share.
    """

    allowzero: int = 0

    required_inputs = (1,)
    plan_time_inputs = (1,)

    def target(self, shape: Shape, wanted: Sequence[Dim]) -> Shape:
        """The new shape.

        Raises:
            ShapeError: The number of elements differs, or a 0 or a second -1 has no meaning.
        """
        holes = [i for i, d in enumerate(wanted) if provably_equal(d, -1)]
        result: list[Dim] = []
        for i, dim in enumerate(wanted):
            if provably_equal(dim, 0) and not self.allowzero:
                if i >= len(shape):
                    raise _error(shape, wanted, f"the 0 at {i} is outside the input's rank")
                dim = shape[i]
            elif isinstance(dim, int) and dim < -1:
                raise _error(shape, wanted, f"{dim} is no dim")
            result.append(dim)
        if len(holes) > 1:
            raise _error(shape, wanted, "only one dim can be -1")
        left = list(shape)
        others: list[Dim] = []
        for i, dim in enumerate(result):
            match = next((k for k, d in enumerate(left) if provably_equal(d, dim)), None)
            if i in holes:
                continue
            if match is None:
                others.append(dim)
            else:
                del left[match]
        have, need_ = product(left), product(others)
        if holes:
            if provably_equal(need_, 0) or provably_different(mod(have, need_), 0):
                raise _error(shape, wanted, "the number of elements is no multiple")
            result[holes[0]] = floordiv(have, need_)
        elif provably_different(have, need_):
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
    """x as a matrix: axes before `axis` are the rows. Source: ONNX Flatten, opset 1 to 25."""

    axis: int = 1

    def target(self, shape: Shape) -> Shape:
        """(product of the dims before the axis, product of the rest)."""
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
    """x without the given axes of one element (all of them by default, and where none are given).

    Source: ONNX Squeeze, opset 1 to 25; axes became an input in 13.
    """

    attribute_to_input: ClassVar[Promoted] = {"axes": (1, np.int64)}
    plan_time_inputs = (1,)

    def target(self, shape: Shape, axes: Sequence[int]) -> Shape:
        """The new shape.

        Raises:
            ShapeError: An axis is outside the rank or has not one element.
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
        if given(inputs, 1) and axes is None:
            gone = length(inputs, 1)
            rank = len(x.shape) - gone if gone else None
            return [TensorType(x.dtype, None if rank is None else fresh_dims(rank))]
        # A dim that may turn out to be 1 leaves the rank open.
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
    """x with new axes of one element at places of the output.

    Source: ONNX Unsqueeze, opset 1 to 25; axes became an input in 13.
    """

    attribute_to_input: ClassVar[Promoted] = {"axes": (1, np.int64)}
    required_inputs = (1,)
    plan_time_inputs = (1,)

    def target(self, shape: Shape, axes: Sequence[int]) -> Shape:
        """The new shape.

        Raises:
            ShapeError: An axis is outside the new rank or given twice.
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
    to = f"[{','.join(map(str, shape))}] to [{','.join(map(str, wanted))}]"
    return ShapeError(f"Reshape: {to}: {trouble}.")
