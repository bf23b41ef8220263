"""Samples of the ops of `clrt/ops/matmul/inverse.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.matmul.inverse import Inverse
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Inverse)
def inverse_samples(cls: type[Inverse]) -> Iterator[Sample]:
    rng = np.random.default_rng(96)
    for shape in [(2, 2), (3, 1, 1), (2, 3, 5, 5), (0, 3, 3), (2, 0, 0), (9, 9)]:
        x = rng.uniform(-1, 1, shape) + 3 * np.eye(shape[-1])
        # No row of some is where its largest element is.
        yield Sample(cls(), (np.flip(x, -1).astype(np.float32),))
    yield Sample(cls(), (np.array([[0, 2], [4, 0]], np.float32),))


@error_samples_of(Inverse)
def inverse_errors(cls: type[Inverse]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros((2, 3), np.float32),)), ShapeError
    yield Sample(cls(), (np.zeros(3, np.float32),)), ShapeError
