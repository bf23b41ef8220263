"""Samples of the ops of `clrt/ops/movement/gather_elements.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.gather_elements import GatherElements
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(GatherElements)
def gather_elements_samples(cls: type[GatherElements]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 5, 6)).astype(np.float32)
    for axis, shape in [(0, (7, 5, 6)), (1, (2, 3, 6)), (-1, (4, 5, 1)), (2, (4, 0, 6))]:
        n = x.shape[axis]
        yield Sample(cls(axis), (x, rng.integers(-n, n, shape)))
        yield Sample(cls(axis), (x, rng.integers(-n, n, shape).astype(np.int32)))
    for dtype in (np.int64, np.bool_, np.float16):
        data = rng.integers(0, 2, 65).astype(dtype)
        yield Sample(cls(), (data, rng.integers(0, 65, 9)))


@error_samples_of(GatherElements)
def gather_elements_errors(cls: type[GatherElements]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3), np.float32)
    yield Sample(cls(), (x, np.zeros(2, np.int64))), ShapeError
    yield Sample(cls(2), (x, np.zeros((2, 3), np.int64))), ShapeError
    yield Sample(cls(0), (x, np.zeros((2, 4), np.int64))), ShapeError
    yield Sample(cls(0), (x, np.zeros((2, 3), np.uint64))), ShapeError
