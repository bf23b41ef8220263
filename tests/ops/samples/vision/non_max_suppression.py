"""Samples of the ops of `clrt/ops/vision/non_max_suppression.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.vision.non_max_suppression import NonMaxSuppression
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(NonMaxSuppression)
def non_max_suppression_samples(cls: type[NonMaxSuppression]) -> Iterator[Sample]:
    rng = np.random.default_rng(93)
    corners = rng.uniform(0, 10, (2, 12, 4)).astype(np.float32)
    scores = rng.uniform(0, 1, (2, 3, 12)).astype(np.float32)
    limits = (np.array([4]), np.array([0.3], np.float32), np.array([0.2], np.float32))
    yield Sample(cls(), (corners, scores, *limits))
    yield Sample(cls(True), (corners, scores, *limits))
    yield Sample(cls(), (corners, scores))


@error_samples_of(NonMaxSuppression)
def non_max_suppression_errors(
    cls: type[NonMaxSuppression],
) -> Iterator[tuple[Sample, type[Exception]]]:
    scores = np.zeros((1, 1, 2), np.float32)
    yield Sample(cls(), (np.zeros((1, 2, 3), np.float32), scores)), ShapeError
    yield Sample(cls(), (np.zeros((2, 4), np.float32), scores)), ShapeError
    wide = np.zeros((1, 2, 4), np.float32)
    yield Sample(cls(), (wide, np.zeros((2, 1, 2), np.float32))), ShapeError
    yield Sample(cls(), (wide, np.zeros((1, 1, 3), np.float32))), ShapeError
