"""Samples of the ops of `clrt/ops/movement/gather.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.gather import Gather
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Gather)
def gather_samples(cls: type[Gather]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for width in (1, 3, 4, 31, 32, 36, 65):
        x = rng.standard_normal((9, width)).astype(np.float32)
        yield Sample(cls(), (x, rng.integers(-9, 9, (2, 3))))
        yield Sample(cls(1), (x, rng.integers(0, width, 5).astype(np.int32)))
    x = rng.standard_normal((3, 4, 8)).astype(np.float32)
    table = rng.standard_normal((2, 5, 700)).astype(np.float32)  # more than a work-item's share
    yield Sample(cls(1), (table, np.array([4, 0, -1, 2, 2, 1])))
    for axis in (0, 1, 2, -2):
        yield Sample(cls(axis), (x, rng.integers(-3, 3, (2, 2)).astype(np.int32)))
    yield Sample(cls(1), (x, np.array(2)))
    yield Sample(cls(1), (x, np.zeros((0, 2), np.int64)))
    yield Sample(cls(), (np.zeros((4, 0), np.float32), np.array([1])))
    for dtype in (np.int64, np.bool_, np.float16, np.uint8):
        yield Sample(cls(), (rng.integers(0, 2, (5, 16)).astype(dtype), np.array([3, -1])))
        yield Sample(cls(), (rng.integers(0, 2, (5, 3)).astype(dtype), np.array([3, -1])))


@error_samples_of(Gather)
def gather_errors(cls: type[Gather]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(2), (np.zeros((2, 3), np.float32), np.array([0]))), ShapeError
    yield Sample(cls(), (np.zeros((), np.float32), np.array([0]))), ShapeError
    yield Sample(cls(), (np.zeros(3, np.float32), np.zeros(2, np.float32))), ShapeError
