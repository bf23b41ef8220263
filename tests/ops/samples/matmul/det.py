"""Samples of the ops of `clrt/ops/matmul/det.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.matmul.det import Det
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Det)
def det_samples(cls: type[Det]) -> Iterator[Sample]:
    rng = np.random.default_rng(95)
    for shape in [(2, 2), (3, 1, 1), (2, 3, 5, 5), (0, 3, 3), (2, 0, 0)]:
        yield Sample(cls(), (rng.standard_normal(shape).astype(np.float32),))
    yield Sample(cls(), (np.array([[0, 1, 2], [0, 0, 3], [4, 5, 6]], np.float32),))
    yield Sample(cls(), (np.ones((3, 3), np.float32),))


@error_samples_of(Det)
def det_errors(cls: type[Det]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros((2, 3), np.float32),)), ShapeError
    yield Sample(cls(), (np.zeros(3, np.float32),)), ShapeError
