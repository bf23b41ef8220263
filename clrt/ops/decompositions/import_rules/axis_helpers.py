"""Axes: moved to where ONNX's ops want them and back, their lengths and places, padding."""

from __future__ import annotations

from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import ImportBuilder


def channels_first(body: ImportBuilder, x: Value, rank: int) -> Value:
    """`[N, …, C]` as `[N, C, …]`."""
    return body("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def channels_last(body: ImportBuilder, y: Value, rank: int) -> Value:
    """`[N, C, …]` as `[N, …, C]`."""
    return body("Transpose", y, perm=[0, *range(2, rank), 1])


def split_heads(body: ImportBuilder, value: Value, heads: int) -> Value:
    """`[B, S, H * D]` as `[B, H, S, D]`."""
    return body("Transpose", body("Reshape", value, body.ints(0, 0, heads, -1)), perm=[0, 2, 1, 3])


def merge_heads(body: ImportBuilder, value: Value) -> Value:
    """`[B, H, S, D]` as `[B, S, H * D]`."""
    return body("Reshape", body("Transpose", value, perm=[0, 2, 1, 3]), body.ints(0, 0, -1))


def dim_of(body: ImportBuilder, value: Value, axis: int) -> Value:
    """A dim of a value, as `[1]`."""
    return body("Shape", value, start=axis, end=axis + 1)


def count_up(body: ImportBuilder, count: Value) -> Value:
    """0, 1, … up to a number `[1]`."""
    return body("Range", body.scalar(0), body("Squeeze", count, body.ints(0)), body.scalar(1))


def padded(
    body: ImportBuilder,
    value: Value,
    axis: int,
    before: Value | None = None,
    after: Value | None = None,
) -> Value:
    """A value with zeros before or behind it along an axis, as many as a number `[1]` says."""
    none = body.ints(0)
    pads = body("Concat", before or none, after or none, axis=0)
    return body("Pad", value, pads, None, body.ints(axis))
