"""Samples of the ops on a paged KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.kv_cache_sizes import MAX_SLABS, PAGE_TOKENS
from clrt.ir.op import Array
from clrt.ops.attention.cache_states import CacheStates
from clrt.ops.attention.paged_attention import PagedAttention
from clrt.ops.attention.paged_cache import PagedOp
from clrt.ops.attention.rotate_and_cache import RotateAndCache
from tests.ops.samples.registry import Sample, error_samples_of, samples_of

# Tokens of two sequences and of none; a sequence with pages in three slabs.
_STEP = np.array([[5, 1, 40], [9, 1, 41], [3, -1, 0], [7, 0, 0], [7, 0, 1], [2, 1, 95]], np.int32)
_TABLE = np.array([[4, 0, 0], [2, 0, 3]], np.int32)
_PAGES = (1, 2, 0, 2, 0, 0)
_NO = (None, None, None)  # no slopes, sinks and biases


def _slabs(
    rng: np.random.Generator,
    op: PagedOp,
    dtype: Any = np.float32,
    pages: tuple[int, ...] = _PAGES,
) -> tuple[Array, ...]:
    form = op.form(DType.of(dtype))
    width = 2 * op.kv_num_heads * form.head_elements
    assert len(pages) == MAX_SLABS
    if dtype is not np.uint8:
        return tuple(rng.standard_normal((n, width)).astype(dtype) for n in pages)
    made = tuple(np.zeros((n, width), dtype) for n in pages)
    for heads in (slab.reshape(-1, form.head_elements) for slab in made):
        for place in range(PAGE_TOKENS):
            k, v = rng.standard_normal((2, len(heads), op.head_size))
            form.keep(heads, place, k, v)
    return made


@samples_of(RotateAndCache)
def rotate_and_cache_samples(cls: type[RotateAndCache]) -> Iterator[Sample]:
    rng = np.random.default_rng(83)
    op = cls(4, 2, 8, 1)
    x = rng.standard_normal((len(_STEP), 64)).astype(np.float32)
    angles = rng.uniform(0, 6, (len(_STEP), 4))
    tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    scales = tuple(rng.uniform(0.5, 2, (2, 8)).astype(np.float32))
    none = (None, None)
    yield Sample(op, (x, _STEP, _TABLE, *none, *none, *_slabs(rng, op)))
    whole = _slabs(rng, op, pages=(1,) * MAX_SLABS)
    yield Sample(op, (x, _STEP, _TABLE, *none, *none, *whole))
    yield Sample(op, (x, _STEP, _TABLE, *tables, *scales, *_slabs(rng, op)))
    part = tuple(np.ascontiguousarray(t[:, :3]) for t in tables)
    turned = cls(4, 2, 8, 0, interleaved=True)
    yield Sample(turned, (x, _STEP, _TABLE, *part, *none, *_slabs(rng, op, np.float16)))
    for size in (8, 12, 64):
        op = cls(4, 2, size, 1)
        x = rng.standard_normal((len(_STEP), 8 * size)).astype(np.float32)
        yield Sample(op, (x, _STEP, _TABLE, *none, *none, *_slabs(rng, op, np.uint8)))
    one = cls(1, 1, 12)
    x = rng.standard_normal((1, 36)).astype(np.float32)
    yield Sample(one, (x, _STEP[:1], _TABLE, *none, *none, *_slabs(rng, one)))
    empty = np.zeros((0, 36), np.float32)
    yield Sample(one, (empty, _STEP[:0], _TABLE, *none, *none, *_slabs(rng, one)))


@samples_of(CacheStates)
def cache_states_samples(cls: type[CacheStates]) -> Iterator[Sample]:
    rng = np.random.default_rng(86)
    op = cls(4, 2, 8, 1)
    x = rng.standard_normal((len(_STEP), 32)).astype(np.float32)
    yield Sample(op, (x, _STEP, _TABLE, *_slabs(rng, op)))
    yield Sample(op, (x, _STEP, _TABLE, *_slabs(rng, op, pages=(1,) * MAX_SLABS)))
    for dtype in (np.float16, np.uint8):
        yield Sample(op, (x, _STEP, _TABLE, *_slabs(rng, op, dtype)))
    yield Sample(op, (x[:0], _STEP[:0], _TABLE, *_slabs(rng, op)))


@samples_of(PagedAttention)
def paged_attention_samples(cls: type[PagedAttention]) -> Iterator[Sample]:
    rng = np.random.default_rng(84)
    for heads, kv_heads, size in ((4, 2, 8), (3, 3, 12), (5, 1, 16), (40, 1, 4)):
        op = cls(heads, kv_heads, size, scale=size**-0.5)
        q = rng.standard_normal((len(_STEP), heads * size)).astype(np.float32)
        yield Sample(op, (q, _STEP, _TABLE, *_NO, *_slabs(rng, op)))
    op = cls(4, 2, 8, 1)
    q = rng.standard_normal((len(_STEP), 32)).astype(np.float32)
    whole = _slabs(rng, op, pages=(1,) * MAX_SLABS)
    yield Sample(op, (q, _STEP, _TABLE, *_NO, *whole))
    slopes, sinks = rng.uniform(0, 0.5, (2, 4)).astype(np.float32)
    biases = rng.standard_normal((4, 43)).astype(np.float32)
    q = rng.standard_normal((len(_STEP), 32)).astype(np.float32)
    for window, softcap, optional in (
        (3, 0.0, _NO),
        (40, 2.0, (None, sinks, None)),
        (-1, 0.0, (slopes, None, None)),
        (0, 1.0, (slopes, sinks, None)),
        (-1, 0.0, (None, None, biases)),
        (50, 2.0, (slopes, sinks, biases[:, :1])),
    ):
        op = cls(4, 2, 8, 1, scale=0.4, left_window=window, softcap=softcap)
        yield Sample(op, (q, _STEP, _TABLE, *optional, *_slabs(rng, op)))
    op = cls(4, 2, 8, scale=0.4)
    yield Sample(op, (q, _STEP, _TABLE, *_NO, *_slabs(rng, op, np.float16)))
    for heads, kv_heads, size in ((4, 2, 8), (3, 1, 12), (7, 1, 64), (3, 3, 48)):
        op = cls(heads, kv_heads, size, 1, scale=0.3)
        q = rng.standard_normal((len(_STEP), heads * size)).astype(np.float32)
        yield Sample(op, (q, _STEP, _TABLE, *_NO, *_slabs(rng, op, np.uint8)))
    yield from _in_parts(cls, rng, slopes, sinks)
    op = cls(4, 2, 8, scale=0.4)
    q = rng.standard_normal((len(_STEP), 32)).astype(np.float32)
    # Many tokens of one sequence: their queries share a work-group.
    many = np.array([[0, 0, p] for p in range(3 * PAGE_TOKENS)], np.int32)
    table = np.array([[1, 0, 2]], np.int32)
    q = rng.standard_normal((len(many), 32)).astype(np.float32)
    yield Sample(op, (q, many, table, *_NO, *_slabs(rng, op)))
    yield Sample(op, (q, many, table, None, None, biases, *_slabs(rng, op)))
    yield Sample(op, (q[:0], many[:0], table, *_NO, *_slabs(rng, op)))


def _in_parts(
    cls: type[PagedAttention], rng: np.random.Generator, slopes: Array, sinks: Array
) -> Iterator[Sample]:
    """Few tokens of a long sequence: work-groups share its pages."""
    table = rng.permutation(12).astype(np.int32)[None]
    biases = rng.standard_normal((4, 40)).astype(np.float32)
    for places, window, optional, dtype in (
        ([379], -1, (None, None, biases), np.float32),
        ([350], 200, (slopes, sinks, None), np.uint8),
        ([158, 159, 160], 70, (None, sinks, None), np.float16),
    ):
        op = cls(4, 2, 8, scale=0.4, left_window=window)
        step = np.array([[0, 0, p] for p in places] + [[0, -1, 0]], np.int32)
        q = rng.standard_normal((len(step), 32)).astype(np.float32)
        slabs = _slabs(rng, op, dtype, pages=(4, 8, 0, 0, 0, 0))
        yield Sample(op, (q, step, table, *optional, *slabs))


@error_samples_of(PagedAttention)
def paged_attention_errors(
    cls: type[PagedAttention],
) -> Iterator[tuple[Sample, type[Exception]]]:
    rng = np.random.default_rng(85)
    op = cls(4, 2, 8)
    q = np.zeros((len(_STEP), 32), np.float32)
    slabs = _slabs(rng, op)
    given = (q, _STEP, _TABLE, *_NO, *slabs)
    yield Sample(cls(3, 2, 8), given), ShapeError
    yield Sample(cls(4, 2, 6), given), ShapeError
    yield Sample(cls(4, 2, 8, 2), given), ShapeError
    yield Sample(op, (q[:2], *given[1:])), ShapeError
    yield Sample(op, (q, _STEP.astype(np.int64), *given[2:])), ShapeError
    yield Sample(op, (*given[:3], np.zeros(3, np.float32), *given[4:])), ShapeError
    for wrong in (np.zeros((3, 5)), np.zeros((4, 0)), np.zeros(4)):
        biases = wrong.astype(np.float32)
        yield Sample(op, (*given[:5], biases, *slabs)), ShapeError
    yield Sample(op, (*given[:-1], slabs[0].astype(np.float16))), ShapeError
