"""Samples of the ops of `clrt/ops/ml/lookup.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.ml.lookup import Lookup
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Lookup)
def lookup_samples(cls: type[Lookup]) -> Iterator[Sample]:
    rng = np.random.default_rng(17)
    for dtype in (np.int64, np.int32, np.int16, np.float32):
        for size in (1, 6, 7):
            keys = np.sort(rng.choice(9, size, replace=False)).astype(dtype)
            values = rng.standard_normal(size).astype(np.float32)
            x = rng.integers(-1, 10, (3, 5)).astype(dtype)
            yield Sample(cls(), (x, keys, values, np.array([-1], np.float32)))
    keys = np.array([-np.inf, 0, 1.5, np.nan], np.float32)
    x = np.array([np.nan, -0.0, 1.5, np.inf, -np.inf], np.float32)
    yield Sample(cls(), (x, keys, np.arange(4), np.array([9])))
    yield Sample(cls(), (x[:0], keys, np.arange(4), np.array([9])))


@error_samples_of(Lookup)
def lookup_errors(cls: type[Lookup]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros(2, np.float32)
    yield Sample(cls(), (x, np.arange(2), np.arange(2), np.array([0]))), ShapeError
    yield Sample(cls(), (x, x, np.arange(1), np.array([0]))), ShapeError
    yield Sample(cls(), (x, x, np.arange(2), np.zeros(0, np.int64))), ShapeError
    yield Sample(cls(), (x, x, np.arange(2), x[:1])), ShapeError
