"""Samples of the ops of `clrt/ops/vision/pooling.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.base import Op
from clrt.ops.vision.pooling import AveragePool, GlobalPool, LpPool, MaxPool, WindowPool
from tests.ops.samples.registry import Sample, error_samples_of, samples_of

_Windowed = TypeVar("_Windowed", bound=WindowPool)


def window_samples(cls: type[_Windowed]) -> Iterator[tuple[_Windowed, tuple[int, ...]]]:
    """Ops and input shapes: ranks, strides, padding, dilation, rounding up, and long rows.

    A stride of more than an axis has leads the lanes behind the last window far out of a row.
    """
    yield from [
        (cls((3,)), (2, 3, 9)),
        (cls((2, 2), (2, 2)), (1, 2, 5, 7)),
        (cls((3, 2), (2, 1), (1, 2), (1, 0, 1, 1)), (2, 2, 8, 9)),
        (cls((3, 3), (2, 2), ceil_mode=True), (1, 1, 6, 8)),
        (cls((3, 3), (2, 2), auto_pad="SAME_UPPER"), (1, 2, 5, 6)),
        (cls((2, 3), (2, 2), auto_pad="SAME_LOWER"), (1, 2, 5, 6)),
        (cls((2, 2, 2), (1, 2, 1)), (1, 2, 3, 4, 5)),
        (cls((3,), pads=(1, 1)), (1, 2, 70)),
        (cls((2,), (2,), pads=(1, 0)), (1, 1, 1100)),
        (cls((3,), (3,), (2,), (20, 20)), (1, 1, 50)),
        (cls((2, 3), (1, 97)), (1, 1, 3, 300)),
        (cls((2,), (1 << 28,)), (1, 2, 9)),
        (cls((2, 2)), (0, 2, 4, 4)),
    ]


@error_samples_of(WindowPool)
def window_pool_errors(cls: type[WindowPool]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 2, 4), np.float32)
    yield Sample(cls((2, 2)), (x,)), ShapeError
    for wrong in (
        *(cls((n,)) for n in (0, -1, -(1 << 63), 1 << 32)),
        *(cls((2,), (n,)) for n in (0, -1, 1 << 31)),
        *(cls((2,), (), (n,)) for n in (0, -1, 1 << 31, (1 << 63) - 1)),
        *(cls((2,), pads=(n, 0)) for n in (1 << 31, -(1 << 63), 1 << 30)),
        cls((2,), (1, 1)),
        cls((2,), (), (1, 1)),
        cls((2,), pads=(1,)),
    ):
        yield Sample(wrong, (x,)), ShapeError


@samples_of(MaxPool)
def max_pool_samples(cls: type[MaxPool]) -> Iterator[Sample]:
    rng = np.random.default_rng(47)
    for op, shape in window_samples(cls):
        for dtype in (np.float32, np.float16, np.int8, np.uint8):
            x = np.asarray(rng.permutation(int(np.prod(shape))) % 128, dtype).reshape(shape)
            yield Sample(op, (x,))
    x = np.asarray(rng.standard_normal((2, 2, 5, 6)), np.float32)
    for order in (0, 1):
        yield Sample(cls((2, 3), (1, 2), storage_order=order, indices=True), (x,))
    for dtype in (np.float32, np.float16):
        x = np.array([[[-np.inf, np.nan, 1, 2, np.nan, np.nan, 3, -np.inf, -np.inf]]], dtype)
        yield Sample(cls((2,), pads=(1, 1), indices=True), (x,))


@samples_of(AveragePool)
def average_pool_samples(cls: type[AveragePool]) -> Iterator[Sample]:
    rng = np.random.default_rng(53)
    for op, shape in window_samples(cls):
        for dtype in (np.float32, np.float16):
            x = np.asarray(rng.uniform(1, 2, shape), dtype)
            yield Sample(op, (x,))
    x = np.asarray(rng.uniform(1, 2, (1, 2, 6, 7)), np.float32)
    for ceil in (False, True):
        pads = (1, 0, 1, 1)
        op = cls((3, 3), (2, 2), pads=pads, ceil_mode=ceil, count_include_pad=True)
        yield Sample(op, (x,))


@samples_of(LpPool)
def lp_pool_samples(cls: type[LpPool]) -> Iterator[Sample]:
    rng = np.random.default_rng(54)
    for op, shape in window_samples(cls):
        for p in (1, 2, 3):
            x = rng.uniform(-2, 2, shape).astype(np.float32)
            yield Sample(replace(op, p=p), (x,))


@error_samples_of(LpPool)
def lp_pool_errors(cls: type[LpPool]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield from window_pool_errors(cls)
    for p in (0, -1):
        yield Sample(cls((2,), p=p), (np.zeros((1, 2, 4), np.float32),)), ShapeError


@samples_of(GlobalPool)
def global_pool_samples(cls: type[GlobalPool]) -> Iterator[Sample]:
    rng = np.random.default_rng(59)
    for shape in [(1, 1, 1), (2, 3, 65), (2, 3, 4, 5), (1, 9, 2, 3, 2), (0, 2, 3, 3)]:
        for dtype in (np.float32, np.float16):
            op = cls()
            assert isinstance(op, Op)
            yield Sample(op, (np.asarray(rng.uniform(1, 2, shape), dtype),))


@error_samples_of(GlobalPool)
def global_pool_errors(cls: type[GlobalPool]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield from ()
