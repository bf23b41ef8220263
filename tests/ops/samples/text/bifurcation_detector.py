"""Samples of the ops of `clrt/ops/text/bifurcation_detector.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.text.bifurcation_detector import BifurcationDetector
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(BifurcationDetector)
def bifurcation_detector_samples(cls: type[BifurcationDetector]) -> Iterator[Sample]:
    source, none, at = np.array([1, 2, 3, 4, 2, 3]), np.zeros(0, np.int64), np.array(2)
    for tokens in ([0, 1, 2], [2, 3], [9], [4, 2, 3]):
        yield Sample(cls(), (source, np.array(tokens), at, None))
        yield Sample(cls(2, 2), (source, np.array(tokens), at, np.array([3, 4, 2, 9, 9])))
    yield Sample(cls(), (source, none, at.reshape(1), np.array([3, 4, 2, 3, 9])))
    yield Sample(cls(), (none, none, np.array(0), np.array([1])))


@error_samples_of(BifurcationDetector)
def bifurcation_detector_errors(
    cls: type[BifurcationDetector],
) -> Iterator[tuple[Sample, type[Exception]]]:
    tokens, at = np.array([1, 2]), np.array(0)
    yield Sample(cls(), (np.array(1), tokens, at)), ShapeError
    yield Sample(cls(), (tokens, np.array(1), at)), ShapeError
    yield Sample(cls(), (tokens, tokens, at, np.array([[1]]))), ShapeError
