"""Samples of the ops of `clrt/ops/tensor/one_hot.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.tensor.one_hot import OneHot
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(OneHot)
def one_hot_samples(cls: type[OneHot]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    values = np.array([-1.5, 2], np.float32)
    for axis in (-1, 0, 1, -2):
        yield Sample(cls(axis), (rng.integers(-9, 9, (3, 4)), np.array(7), values))
    for dtype in (np.int32, np.float32, np.float16, np.uint8):
        whole = rng.integers(0, 9, 5).astype(dtype)
        yield Sample(cls(), (whole, np.array([65]), np.array([0, 1], np.bool_)))
    yield Sample(cls(), (np.array(2), np.array(3), np.array([5, 6])))
    yield Sample(cls(), (np.zeros((0, 2), np.int64), np.array(3), values))
    yield Sample(cls(), (np.array([1]), np.array(3), values.astype(np.float16)))


@error_samples_of(OneHot)
def one_hot_errors(cls: type[OneHot]) -> Iterator[tuple[Sample, type[Exception]]]:
    values = np.array([0, 1], np.float32)
    yield Sample(cls(3), (np.zeros((2, 2), np.int64), np.array(3), values)), ShapeError
    yield Sample(cls(), (np.zeros(2, np.int64), np.array(-3), values)), ShapeError
    yield Sample(cls(), (np.zeros(2, np.int64), np.array(3), values[:1])), ShapeError
    yield Sample(cls(), (np.zeros(2, np.int64), np.zeros(0, np.int64), values)), ShapeError
