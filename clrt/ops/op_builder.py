"""Graph builder for ops given as objects or by ONNX names, with subgraphs for decompositions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.ir.builder import Builder
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import IrOp
from clrt.ops.registry import REGISTRY


def ints(*numbers: int) -> NDArray[np.int64]:
    """Returns an int64 vector of `numbers`."""
    return np.array(numbers, np.int64)


def floats(number: float) -> NDArray[np.float32]:
    """Returns `number` as a float32 array of shape []."""
    return np.array(number, np.float32)


class OpBuilder(Builder):
    """Builds a graph by calls that add a node and return its first output.

    `build("Op", *inputs, **attributes)` takes the name of an op, `build(Op(...), *inputs)` the op
    itself. Arrays among the inputs become constants.
    """

    def float_feed(self, name: str, dtype: DType, *shape: Dim | str) -> Value:
        """Adds a graph input of dtype `dtype` and shape `shape`; returns it cast to float32."""
        return self.cast(self.feed(name, dtype, *shape), DType.FLOAT32)

    def __call__(
        self, op: IrOp | str, *inputs: Value | NDArray[Any] | None, **attributes: Any
    ) -> Value:
        values = [self.constant(a) if isinstance(a, np.ndarray) else a for a in inputs]
        if isinstance(op, str):
            return self.node(op, values, 1, **attributes)[0]
        return self.add(op, *values)

    def node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: int,
        domain: str = "",
        **attrs: Any,
    ) -> list[Value]:
        """Adds a node of a named op and returns its outputs.

        Args:
            op: Op name.
            inputs: Input values; None for an omitted one.
            outputs: Number of outputs.
            domain: Op domain; "" for ai.onnx.
            attrs: Attributes.
        """
        return self._add_named(op, domain, inputs, outputs, attrs)

    def _add_named(
        self,
        op: str,
        domain: str,
        inputs: Sequence[Value | None],
        outputs: int,
        attrs: dict[str, Any],
    ) -> list[Value]:
        """Adds a node of op `op` of `domain` and returns its outputs; `node` calls this method.

        Subclasses may override it, for example to add a node of an ONNX file.

        Args:
            op: Op name.
            domain: Op domain; "" for ai.onnx.
            inputs: Input values; None for an omitted one.
            outputs: Number of outputs.
            attrs: Attributes by name.
        """
        return self.add_all(REGISTRY.get(domain, op)(**attrs), *inputs)[:outputs]

    def cast(self, value: Value, dtype: DType) -> Value:
        """Returns a value cast to a dtype; the value itself if it has this dtype."""
        return value if value.dtype is dtype else self("Cast", value, to=dtype)

    def slice(
        self, value: Value, start: Dim | Value, end: Dim | Value, axis: int, step: int = 1
    ) -> Value:
        """Returns the elements from `start` to `end` (exclusive) of an axis.

        Args:
            value: Value to slice.
            start: First index, as in ONNX's Slice: a dim, or an int64 value `[1]`.
            end: Index behind the last one, in the same forms.
            axis: Sliced axis.
            step: Distance of consecutive indices.
        """
        ends = (n if isinstance(n, Value) else self._vector(n) for n in (start, end))
        steps = () if step == 1 else (self.ints(step),)
        return self("Slice", value, *ends, self.ints(axis), *steps)

    def _vector(self, dim: Dim) -> Value:
        return self.ints(dim) if isinstance(dim, int) else self.dims((dim,))

    def reshaped(self, value: Value, *dims: Dim) -> Value:
        """Returns a value with the shape `dims`, which may be symbolic."""
        return self("Reshape", value, self.dims(dims), allowzero=1)

    def split_heads(
        self, value: Value, heads: int, size: int = -1, perm: Sequence[int] = (0, 2, 1, 3)
    ) -> Value:
        """Converts `[B, S, heads * size]` to `[B, heads, S, size]`, for B sequences of S positions.

        Args:
            value: Value to convert.
            heads: Number of heads.
            size: Elements per head; -1 to infer it.
            perm: Permutation of `[B, S, heads, size]` that gives the result.
        """
        split = self("Reshape", value, self.ints(0, 0, heads, size))
        return self("Transpose", split, perm=tuple(perm))

    def merge_heads(self, value: Value, width: int = -1) -> Value:
        """Converts `[B, heads, S, size]` to `[B, S, width]`, for B sequences of S positions.

        Args:
            value: Value to convert.
            width: heads * size; -1 to infer it.
        """
        merged = self("Transpose", value, perm=(0, 2, 1, 3))
        return self("Reshape", merged, self.ints(0, 0, width))

    def rotated(self, x: Value, halves: Sequence[Value], cos: Value, sin: Value) -> Value:
        """Returns x rotated: elements i and i + n / 2 of its last axis, of size n, form a pair.

        Args:
            x: Value to rotate.
            halves: First and second half of x along its last axis.
            cos: Cosines, the same for both elements of a pair.
            sin: Sines, the same for both elements of a pair.

        Source: Su et al., RoFormer (2021).
        """
        first, second = halves
        swapped = self("Concat", self("Neg", second), first, axis=-1)
        return self("Add", self("Mul", x, cos), self("Mul", swapped, sin))

    def channels_first(self, x: Value, rank: int) -> Value:
        """Transposes `x` of rank `rank` from channels as the last axis to channels as axis 1."""
        return self("Transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))

    def channels_last(self, y: Value, rank: int) -> Value:
        """Transposes `y` of rank `rank` from channels as axis 1 to channels as the last axis."""
        return self("Transpose", y, perm=(0, *range(2, rank), 1))

    def dim_of(self, value: Value, axis: int) -> Value:
        """Returns the size of an axis of a value, int64 `[1]`."""
        return self("Shape", value, start=axis, end=axis + 1)

    def count_up(self, count: Value | Dim) -> Value:
        """Returns 0, 1, …, count - 1, int64; `count` is a dim or an int64 of shape `[1]`."""
        end = self("Squeeze", count, self.ints(0)) if isinstance(count, Value) else self.dim(count)
        return self("Range", self.numbers(0), end, self.numbers(1))

    def padded(
        self, value: Value, axis: int, before: Value | None = None, after: Value | None = None
    ) -> Value:
        """Returns a value with zeros added along an axis.

        Args:
            value: Value to pad.
            axis: Padded axis.
            before: Number of zeros in front, `[1]`; None for none.
            after: Number of zeros at the end, `[1]`; None for none.
        """
        none = self.ints(0)
        pads = self("Concat", before or none, after or none, axis=0)
        return self("Pad", value, pads, None, self.ints(axis))
