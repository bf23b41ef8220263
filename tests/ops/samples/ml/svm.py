"""Samples of the ops of `clrt/ops/ml/svm.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.ml.svm import CouplePairs, SquaredDistance
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(SquaredDistance)
def squared_distance_samples(cls: type[SquaredDistance]) -> Iterator[Sample]:
    rng = np.random.default_rng(37)
    for rows, count, features in [(1, 1, 1), (3, 5, 7), (2, 3, 65), (0, 3, 2), (2, 2, 0)]:
        shapes = (rows, features), (count, features)
        yield Sample(cls(), tuple(rng.standard_normal(s).astype(np.float32) for s in shapes))
    yield Sample(cls(), (rng.standard_normal((3, 5)), rng.standard_normal((2, 5))))


@error_samples_of(SquaredDistance)
def squared_distance_errors(cls: type[SquaredDistance]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3), np.float32)
    yield Sample(cls(), (x, x.T)), ShapeError
    yield Sample(cls(), (x, x.astype(np.float64))), ShapeError


@samples_of(CouplePairs)
def couple_pairs_samples(cls: type[CouplePairs]) -> Iterator[Sample]:
    rng = np.random.default_rng(43)
    for classes in (2, 3, 5):
        for rows in (0, 1, 7):
            shape = (rows, classes * (classes - 1) // 2)
            yield Sample(cls(classes), (rng.uniform(0, 1, shape).astype(np.float32),))
    yield Sample(cls(2), (np.array([[0], [1]], np.float32),))


@error_samples_of(CouplePairs)
def couple_pairs_errors(cls: type[CouplePairs]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(4), (np.zeros((2, math.comb(5, 2)), np.float32),)), ShapeError
