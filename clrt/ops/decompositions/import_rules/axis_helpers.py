"""Helpers for axes: channel layouts, attention heads, dims, positions, padding."""

from __future__ import annotations

from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import ImportBuilder


def channels_first(body: ImportBuilder, x: Value, rank: int) -> Value:
    """Transposes `x` of rank `rank` from `[N, …, C]` to `[N, C, …]`."""
    return body("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def channels_last(body: ImportBuilder, y: Value, rank: int) -> Value:
    """Transposes `y` of rank `rank` from `[N, C, …]` to `[N, …, C]`."""
    return body("Transpose", y, perm=[0, *range(2, rank), 1])


def split_heads(body: ImportBuilder, value: Value, heads: int) -> Value:
    """Converts `[B, S, H * D]` to `[B, H, S, D]`, where `heads` is H."""
    return body("Transpose", body("Reshape", value, body.ints(0, 0, heads, -1)), perm=[0, 2, 1, 3])


def merge_heads(body: ImportBuilder, value: Value) -> Value:
    """Converts `[B, H, S, D]` to `[B, S, H * D]`."""
    return body("Reshape", body("Transpose", value, perm=[0, 2, 1, 3]), body.ints(0, 0, -1))


def dim_of(body: ImportBuilder, value: Value, axis: int) -> Value:
    """Returns the size of an axis of a value, int64 `[1]`."""
    return body("Shape", value, start=axis, end=axis + 1)


def count_up(body: ImportBuilder, count: Value) -> Value:
    """Returns 0, 1, …, count - 1, int64; `count` is an int64 of shape `[1]`."""
    return body("Range", body.scalar(0), body("Squeeze", count, body.ints(0)), body.scalar(1))


def padded(
    body: ImportBuilder,
    value: Value,
    axis: int,
    before: Value | None = None,
    after: Value | None = None,
) -> Value:
    """Returns a value with zeros added along an axis.

    Args:
        body: Builder.
        value: Value to pad.
        axis: Padded axis.
        before: Number of zeros in front, `[1]`; None for none.
        after: Number of zeros at the end, `[1]`; None for none.
    """
    none = body.ints(0)
    pads = body("Concat", before or none, after or none, axis=0)
    return body("Pad", value, pads, None, body.ints(axis))
