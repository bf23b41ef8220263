"""Samples of the ops of `clrt/ops/signal/dynamic_time_warping.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.signal.dynamic_time_warping import DynamicTimeWarping
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(DynamicTimeWarping)
def dynamic_time_warping_samples(cls: type[DynamicTimeWarping]) -> Iterator[Sample]:
    rng = np.random.default_rng(97)
    for shape in [(4, 6), (1, 7, 3), (1, 1), (0, 3)]:
        yield Sample(cls(), (rng.uniform(0, 1, shape).astype(np.float32),))
    yield Sample(cls(), (np.ones((3, 4), np.float32),))


@error_samples_of(DynamicTimeWarping)
def dynamic_time_warping_errors(
    cls: type[DynamicTimeWarping],
) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros((2, 2, 3), np.float32),)), ShapeError
    yield Sample(cls(), (np.zeros(3, np.float32),)), ShapeError
