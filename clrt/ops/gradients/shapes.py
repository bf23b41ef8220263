"""Helpers of gradient rules that undo broadcasting and views, also of symbolic shapes."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.errors import UnsupportedError
from clrt.ir.dim_operations import floordiv, maximum
from clrt.ir.dims import Dim, Shape, product, provably_equal, same_shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.op_builder import OpBuilder


def known_shape(value: Value) -> Shape:
    """Returns the shape of a value.

    Raises:
        UnsupportedError: The rank is unknown.
    """
    if value.shape is None:
        raise UnsupportedError(
            f"the rank of '{value.name}' is unknown, which gradients need; export the model with "
            "known ranks"
        )
    return value.shape


def known_size(vector: Value) -> int:
    """Returns the number of elements of a vector.

    Raises:
        UnsupportedError: It depends on run-time data or symbols.
    """
    (size,) = known_shape(vector)
    if not isinstance(size, int):
        raise UnsupportedError(f"the size of '{vector.name}' is unknown, which gradients need")
    return size


def sum_to(b: OpBuilder, value: Value, like: Value) -> Value:
    """Sums a value over the axes along which `like` was broadcast to its shape.

    A dim that may or may not have been broadcast, which depends on symbols, is split into
    (size of `like`, rest), and the rest is summed.

    Args:
        value: Cotangent of a result to which `like` was broadcast.
        like: Operand; the result has its shape.
    """
    shape, out = known_shape(like), known_shape(value)
    lead = len(out) - len(shape)
    if lead:
        value = b("ReduceSum", value, b.ints(*range(lead)), keepdims=0)
    pairs = list(zip(out[lead:], shape, strict=True))
    broadcast = [i for i, (d, s) in enumerate(pairs) if not provably_equal(d, s)]
    if not broadcast:
        return value
    if all(provably_equal(shape[i], 1) for i in broadcast):
        return b("ReduceSum", value, b.ints(*broadcast), keepdims=1)
    split: list[Dim] = []
    summed = []
    for axis, (dim, size) in enumerate(pairs):
        split.append(size if axis in broadcast else dim)
        if axis in broadcast:
            summed.append(len(split))
            split.append(floordiv(dim, maximum(size, 1)))
    return b("ReduceSum", b.reshaped(value, *split), b.ints(*summed), keepdims=0)


def reshaped_like(b: OpBuilder, value: Value, like: Value) -> Value:
    """Returns a value, of as many elements as `like`, in the shape of `like`."""
    if same_shape(value.shape, like.shape):
        return value
    return b.reshaped(value, *known_shape(like))


def expanded_like(b: OpBuilder, value: Value, like: Value) -> Value:
    """Returns a value broadcast to the shape of `like`."""
    if same_shape(value.shape, like.shape):
        return value
    return b("Expand", value, b.dims(known_shape(like)))


def filled_like(b: OpBuilder, number: float, like: Value) -> Value:
    """Returns a tensor of the shape and dtype of `like` whose elements are all `number`."""
    return expanded_like(b, b.numbers(number, like.dtype), like)


def filled(b: OpBuilder, number: float, shape: Sequence[Dim], dtype: DType) -> Value:
    """Returns a tensor of a shape whose elements are all `number`."""
    return b("Expand", b.numbers(number, dtype), b.dims(shape))


def share_of(b: OpBuilder, dims: Shape, dtype: DType) -> Value:
    """Returns 1 / the product of dims as a scalar; the product may exceed the range of `dtype`."""
    count = product(dims)
    if isinstance(count, int):
        return b.numbers(1 / max(count, 1), dtype)
    wide = b.cast(b.dim(count), max(dtype, DType.FLOAT32, key=lambda d: d.itemsize))
    return b.cast(b("Reciprocal", wide), dtype)


def swapped(b: OpBuilder, value: Value) -> Value:
    """Returns a value of rank 2 or more with its last two axes swapped."""
    rank = len(known_shape(value))
    return b("Transpose", value, perm=(*range(rank - 2), rank - 1, rank - 2))


def scattered(b: OpBuilder, rows: Value, indices: Value, axis: int, shape: Sequence[Dim]) -> Value:
    """Adds slices of a value at indices along an axis to zeros: the reverse of Gather.

    Args:
        b: Adds the nodes.
        rows: Slices to add; along `axis` it has the axes of `indices`.
        indices: Index of each slice.
        axis: Axis of the result, counted from the front.
        shape: Shape of the result.
    """
    count = len(known_shape(indices))
    rank = len(shape) - 1 + count
    indexed = range(axis, axis + count)
    others = [a for a in range(rank) if a not in indexed]
    first = b("Transpose", rows, perm=(*indexed, *others))
    rest = [d for a, d in enumerate(shape) if a != axis]
    zeros = filled(b, 0, (shape[axis], *rest), rows.dtype)
    at = b("Unsqueeze", indices, b.ints(count))
    total = b("ScatterND", zeros, at, first, reduction="add")
    return b("Transpose", total, perm=(*range(1, axis + 1), 0, *range(axis + 1, len(shape))))
