"""Samples of the ops of `clrt/ops/movement/transpose.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.transpose import Transpose
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@error_samples_of(Transpose)
def transpose_errors(cls: type[Transpose]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((4, 3, 2), np.float32)
    yield Sample(cls((1, 0)), (x,)), ShapeError


@samples_of(Transpose)
def transpose_samples(cls: type[Transpose]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    cases: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = [
        ((3,), None),
        ((5, 7), None),
        ((2, 3, 4, 5), (0, 2, 1, 3)),
        ((0, 3), (1, 0)),
        ((70, 2, 67), (1, 0, 2)),
    ]
    for shape, perm in cases:
        yield Sample(cls(perm), (rng.standard_normal(shape).astype(np.float32),))
    # Around the tiles of a CPU's copy, and more than one of its work-items does.
    cases = [((19, 530), (1, 0)), ((2, 37, 21), (0, 2, 1)), ((3, 18, 4), (2, 0, 1))]
    for shape, perm in cases:
        for dtype in (np.float32, np.uint8, np.float64):
            yield Sample(cls(perm), (rng.integers(0, 99, shape).astype(dtype),))
    yield Sample(cls((1, 0)), (rng.integers(-9, 9, (4, 3)),))
