"""Samples of the ops of `clrt/ops/movement/slice.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.slice import Slice
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Slice)
def slice_samples(cls: type[Slice]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 6, 7)).astype(np.float32)
    far = (1 << 63) - 1
    cases: list[tuple[list[int], ...]] = [
        ([1], [4]),
        ([1, 0], [-1, far]),
        ([0, -3], [3, far], [0, 2]),
        ([-1], [-far], [1], [-1]),
        ([5, 1], [0, 6], [1, -1], [-2, 2]),
        ([3], [3], [0]),
        ([4], [-9], [0], [-3]),
        ([-9, -8], [-far, -9], [0, 1], [-1, -2]),
        ([0], [1], [-2]),
    ]
    for case in cases:
        yield Sample(cls(), (x, *(np.array(v, np.int64) for v in case)))
    one = np.array([1], np.int32)
    yield Sample(cls(), (rng.integers(-9, 9, 66), one, one * 66))
    yield Sample(cls(), (rng.integers(0, 2, (3, 8)) > 0, one, one * 7, one, one * 2))
    yield Sample(cls(), (np.zeros((0, 4), np.float16), one, one * 3, one))


@error_samples_of(Slice)
def slice_errors(cls: type[Slice]) -> Iterator[tuple[Sample, type[Exception]]]:
    x, one = np.zeros((2, 3), np.float32), np.array([1])
    yield Sample(cls(), (x, one, one, one * 2)), ShapeError
    yield Sample(cls(), (x, one, one, one, one * 0)), ShapeError
    yield Sample(cls(), (x, one, np.array([1, 2]))), ShapeError
