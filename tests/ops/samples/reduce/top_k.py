"""Samples of the ops of `clrt/ops/reduce/top_k.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.reduce.top_k import TopK
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(TopK)
def top_k_samples(cls: type[TopK]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for shape, axis, k in [
        ((1,), 0, 1),
        ((3, 5), 1, 2),
        ((2, 17, 3), 1, 17),
        ((65,), -1, 20),
        ((2, 530), 1, 3),
        ((150,), 0, 70),
        ((33, 2), 0, 0),
        ((0, 3), 1, 2),
    ]:
        for largest in (0, 1):
            x = rng.integers(-9, 9, shape).astype(np.float32)
            yield Sample(cls(axis, largest), (x, np.array([k])))
    for dtype in (np.float16, np.int8, np.int64, np.uint64, np.float64):
        x = rng.integers(0, 50, (2, 40)).astype(dtype)
        yield Sample(cls(), (x, np.array([33])))
    odd = np.array([[1, np.nan, np.inf, -0.0, 0.0, np.nan, -np.inf]], np.float32)
    for largest in (0, 1):
        yield Sample(cls(1, largest), (odd, np.array([7])))


@error_samples_of(TopK)
def top_k_errors(cls: type[TopK]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3), np.float32)
    yield Sample(cls(), (x, np.array([4]))), ShapeError
    yield Sample(cls(), (x, np.array([-1]))), ShapeError
    yield Sample(cls(2), (x, np.array([1]))), ShapeError
