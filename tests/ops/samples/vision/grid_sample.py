"""Samples of the ops of `clrt/ops/vision/grid_sample.py`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.vision.grid_sample import PADDING_OF, TAPS_OF, GridSample
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(GridSample)
def grid_sample_samples(cls: type[GridSample]) -> Iterator[Sample]:
    rng = np.random.default_rng(107)
    for shape in [(2, 3, 4, 5), (1, 2, 3, 2, 4)]:
        x = rng.standard_normal(shape).astype(np.float32)
        rank = len(shape) - 2
        grid = rng.uniform(-1.7, 1.7, (shape[0], *(3,) * rank, rank)).astype(np.float32)
        for mode, padding in itertools.product(TAPS_OF, PADDING_OF):
            yield Sample(cls(len(mode) % 2 > 0, mode, padding), (x, grid))
    half = rng.standard_normal((1, 2, 4, 4)).astype(np.float16)
    yield Sample(cls(), (half, rng.uniform(-1, 1, (1, 2, 3, 2)).astype(np.float16)))


@error_samples_of(GridSample)
def grid_sample_errors(cls: type[GridSample]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 1, 3, 3), np.float32)
    yield Sample(cls(), (x, np.zeros((1, 2, 2, 3), np.float32))), ShapeError
    yield Sample(cls(), (x, np.zeros((1, 2, 2), np.float32))), ShapeError
    yield Sample(cls(), (x, np.zeros((2, 2, 2, 2), np.float32))), ShapeError
