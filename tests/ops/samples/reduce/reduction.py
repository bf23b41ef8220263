"""Samples of the ops of `clrt/ops/reduce/reduction.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ops.reduce.reduction import Reduce
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Reduce)
def reduce_samples(cls: type[Reduce]) -> Iterator[Sample]:
    rng = np.random.default_rng(23)
    cases: list[tuple[tuple[int, ...], list[int] | None]] = [
        ((7,), None), ((3, 8), [1]), ((3, 65), [-1]), ((2, 9, 17), [1]), ((5, 4, 3), [0]),
        ((2, 3, 4, 5), [1, 3]), ((2, 3, 4, 5), [0, 2]), ((2, 3, 8), [0, 1]), ((4, 1), [1]),
        ((3, 5, 1), [0, 2]), ((), None), ((0, 3), [1]), ((130, 2), None), ((2, 1, 5), [1]),
        ((37, 3), [1]), ((3, 525), [0]), ((3, 3, 2100), [0, 2]),
    ]  # fmt: skip
    for index, (shape, axes) in enumerate(cases):
        for dtype in sample_dtypes(cls):
            x = np.asarray(draw(cls, rng, shape), dtype.numpy)
            given_axes = () if axes is None else (np.asarray(axes, np.int64),)
            yield Sample(cls(index % 2 == 0), (x, *given_axes))
    x = np.asarray(draw(cls, rng, (3, 4)), np.float32)
    empty = np.zeros(0, np.int64)
    yield Sample(cls(noop_with_empty_axes=True), (x, empty))
    yield Sample(cls(noop_with_empty_axes=False), (x, empty))
    yield Sample(cls(), (np.zeros((2, 0, 3), np.float32), np.asarray([1], np.int64)))


def draw(cls: type[Reduce], rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Elements whose reduction loses nothing to cancellation."""
    return rng.uniform(1, 4, shape)


def sample_dtypes(cls: type[Reduce]) -> list[DType]:
    """The dtypes that samples are drawn in."""
    integers = [DType.INT64, DType.INT32, DType.UINT8] if cls.integers else []
    return [DType.FLOAT32, DType.FLOAT16, *integers, *([DType.BOOL] if cls.selects else [])]


@error_samples_of(Reduce)
def reduce_errors(cls: type[Reduce]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros((2, 3), np.float32), np.asarray([2]))), ShapeError
