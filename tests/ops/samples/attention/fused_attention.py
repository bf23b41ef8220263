"""Samples of the ops of `clrt/ops/attention/fused_attention.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.attention.fused_attention import FusedAttention
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(FusedAttention)
def fused_attention_samples(cls: type[FusedAttention]) -> Iterator[Sample]:
    rng = np.random.default_rng(11)
    for sq, sk in [(1, 1), (1, 17), (15, 16), (16, 15), (17, 63), (8, 64), (3, 65), (2, 130)]:
        yield sample(cls, rng, 2, sq, sk, cls.plain(2, 8))
    yield sample(cls, rng, 1, 3, 70, cls.plain(1, 8))  # so few that GPUs share out the keys
    for size in (1, 20, 64):
        yield sample(cls, rng, 1, 17, 33, cls.plain(3, size))
    op = cls.plain(4, 8)
    for shape in [(9, 9), (2, 1, 1, 9), (1, 4, 9, 9), (2, 1, 9, 1), (2, 4, 1, 9)]:
        for dtype in (np.dtype(bool), np.dtype(np.float32)):
            yield sample(cls, rng, 2, 9, 9, op, shape, dtype)
    for causal_sq, causal_sk in [(5, 5), (20, 7), (7, 20), (140, 150)]:
        yield sample(cls, rng, 1, causal_sq, causal_sk, cls.plain(2, 8, is_causal=True))
    yield sample(cls, rng, 2, 9, 9, cls.plain(4, 8, is_causal=True), (9, 9), np.dtype(bool))
    yield sample(cls, rng, 2, 9, 9, cls.plain(4, 8, kv_num_heads=2, v_head_size=5))
    for sq, sk, rows in [(9, 9, 4), (33, 33, 4), (3, 70, 1), (70, 3, 4), (1, 1, 4)]:
        by_distance = cls.plain(4, 8, by_distance=True)
        for dtype in (np.dtype(bool), np.dtype(np.float32)):
            yield sample(cls, rng, 2, sq, sk, by_distance, (rows, sq + sk - 1), dtype)
    yield from cache_samples(cls, rng)
    yield from corner_samples(cls, rng)


def sample(
    cls: type[FusedAttention],
    rng: np.random.Generator,
    batch: int,
    sq: int,
    sk: int,
    op: FusedAttention,
    mask_shape: tuple[int, ...] | None = None,
    mask_dtype: np.dtype[Any] | None = None,
) -> Sample:
    widths = (
        (sq, op.num_heads * op.head_size),
        (sk, op.kv_num_heads * op.head_size),
        (sk, op.kv_num_heads * op.v_head_size),
    )
    qkv = [rng.standard_normal((batch, s, w)).astype(np.float32) for s, w in widths]
    if mask_shape is None or mask_dtype is None:
        return Sample(op, tuple(qkv))
    mask = rng.standard_normal(mask_shape)
    return Sample(op, (*qkv, mask > -0.8 if mask_dtype.kind == "b" else mask.astype(mask_dtype)))


def cache_samples(cls: type[FusedAttention], rng: np.random.Generator) -> Iterator[Sample]:
    """Keys and values with room behind them, which holds what must not be read."""
    for rows, room, lengths, end, window in [
        (1, 17, (17, 1, 0), True, -1),
        (1, 70, (5, 70, 33), True, 4),
        (5, 19, (5, 12, 19), True, -1),
        (9, 20, (3, 9, 20), True, 2),
        (20, 7, (7, 3, 5), False, 5),
        (3, 9, (1, 9, 2), False, 0),
    ]:
        q = rng.standard_normal((3, 4, rows, 8)).astype(np.float32)
        k, v = rng.standard_normal((2, 3, 2, room, 8)).astype(np.float32)
        for cache, n in zip((*k, *v), lengths * 2, strict=True):
            cache[:, n:] = 1e30
        op = cls.plain(4, 8, kv_num_heads=2, at_end=end, left_window=window)
        held = np.array(lengths, np.int32 if end and window >= 0 else np.int64)
        yield Sample(op, (q, k, v, None, held))
        yield Sample(replace(op, is_causal=True, nan_to_zero=True), (q, k, v, None, held))
        mask = rng.standard_normal((3, 1, rows, room)).astype(np.float32)
        capped = replace(op, softcap=0.5, is_causal=end, nan_to_zero=True)
        yield Sample(capped, (q, k, v, mask, np.array(lengths)))
    x = rng.standard_normal((2, 11, 16)).astype(np.float32)
    yield Sample(cls.plain(2, 8, is_causal=True, at_end=True), (x[:, :4], x, x))
    yield Sample(cls.plain(2, 8, softcap=2.0), (x, x, x))
    half = x.astype(np.float16)
    op = cls.plain(2, 8, is_causal=True, at_end=True, left_window=3, softcap=3.0)
    yield Sample(op, (half[:, :2], half, half, None, np.array([7, 11])))


def corner_samples(cls: type[FusedAttention], rng: np.random.Generator) -> Iterator[Sample]:
    """A merged projection, rows without a visible key, masks near the lowest float."""
    merged = rng.standard_normal((2, 19, 3 * 24)).astype(np.float32)
    offsets = {"q_offset": 0, "k_offset": 24, "v_offset": 48}
    yield Sample(cls.plain(3, 8, **offsets), (merged, merged, merged))
    apart = [rng.standard_normal((2, h, s, 8)).astype(np.float32) for h, s in ((4, 5), (2, 9))]
    yield Sample(cls.plain(4, 8, kv_num_heads=2), (apart[0], apart[1], apart[1]))
    yield Sample(
        cls.plain(4, 8, kv_num_heads=2, k_offset=8, v_offset=24),
        (apart[0], *[rng.standard_normal((2, 7, 48)).astype(np.float32)] * 2),
    )
    x = rng.standard_normal((2, 6, 16)).astype(np.float32)
    kept = np.ones((2, 1, 6, 6), bool)
    kept[0, 0, 2] = False
    kept[1, 0, :, 3] = False
    lowest = np.where(kept, 0, np.finfo(np.float32).min).astype(np.float32)
    infinite = np.where(kept, 0, -np.inf).astype(np.float32)
    for mask in (kept, lowest, infinite):
        yield Sample(cls.plain(2, 8), (x, x, x, mask))
        yield Sample(cls.plain(2, 8, nan_to_zero=True), (x, x, x, mask))
    no_keys = np.zeros((2, 0, 16), np.float32)
    yield Sample(cls.plain(2, 8), (x, no_keys, no_keys))
    yield Sample(cls.plain(2, 8), (no_keys, x, x))
    half = x.astype(np.float16)
    yield Sample(cls.plain(2, 8), (half, half, half))


@error_samples_of(FusedAttention)
def fused_attention_errors(cls: type[FusedAttention]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 3, 16), np.float32)
    yield Sample(cls.plain(3, 8), (x, x, x)), ShapeError
    yield Sample(cls.plain(3, 4, kv_num_heads=2), (x, x, x)), ShapeError
    yield Sample(cls.plain(2, 8), (x, x, x, np.zeros((5, 3), np.float32))), ShapeError
    yield Sample(cls.plain(2, 8), (x, x[:, :2], x)), ShapeError
    yield Sample(cls.plain(2, 8), (x, np.zeros((2, 3, 16), "f4"), x)), ShapeError
    yield Sample(cls.plain(2, 8), (x, x, x.astype(np.float16))), ShapeError
    yield Sample(cls.plain(2, 8), (x, x, x, np.zeros((3, 3), np.int8))), ShapeError
    yield Sample(cls.plain(2, 8), (x, x, x, None, np.zeros(2, np.int64))), ShapeError
    yield Sample(cls.plain(2, 8), (x, x, x, None, np.zeros(1, np.float32))), ShapeError
    for name in ("q_offset", "k_offset", "v_offset", "head_size", "v_head_size", "num_heads"):
        wrong: dict[str, Any] = {name: -1}
        yield Sample(replace(cls.plain(2, 8), **wrong), (x, x, x)), ShapeError
