"""Samples of the ops of `clrt/ops/tensor/unique.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.tensor.unique import Unique
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Unique)
def unique_samples(cls: type[Unique]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for axis in (None, 0, -1):
        for ordered in (0, 1):
            x = rng.integers(0, 2, (3, 4, 2))
            yield Sample(cls(axis, ordered), (x.astype(np.float32),))
    yield Sample(cls(), (np.zeros(0, np.int64),))


@error_samples_of(Unique)
def unique_errors(cls: type[Unique]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(1), (np.zeros(3, np.float32),)), ShapeError
    yield Sample(cls(0), (np.zeros((), np.float32),)), ShapeError
