"""Axes moved to where ONNX's ops want them, and back."""

from __future__ import annotations

from clrt.importer.expansions.body import Body


def channels_first(body: Body, x: str, rank: int) -> str:
    """`[N, …, C]` as `[N, C, …]`."""
    return body("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def channels_last(body: Body, y: str, rank: int) -> str:
    """`[N, C, …]` as `[N, …, C]`."""
    return body("Transpose", y, perm=[0, *range(2, rank), 1])


def split_heads(body: Body, value: str, heads: int) -> str:
    """`[B, S, H * D]` as `[B, H, S, D]`."""
    return body("Transpose", body("Reshape", value, body.ints(0, 0, heads, -1)), perm=[0, 2, 1, 3])


def merge_heads(body: Body, value: str) -> str:
    """`[B, H, S, D]` as `[B, S, H * D]`."""
    return body("Reshape", body("Transpose", value, perm=[0, 2, 1, 3]), body.ints(0, 0, -1))
