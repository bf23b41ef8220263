"""Samples of the ops of `clrt/ops/attention/update_cache.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.attention.update_cache import UpdateCache
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(UpdateCache)
def update_cache_samples(cls: type[UpdateCache]) -> Iterator[Sample]:
    rng = np.random.default_rng(7)
    for size, total, rows, first in [(5, 5, 1, (4, 0)), (5, 7, 2, (5, 1)), (0, 3, 3, (0, 0))]:
        cache = rng.standard_normal((2, 3, size, 4)).astype(np.float32)
        new = rng.standard_normal((2, 3, rows, 4)).astype(np.float32)
        yield Sample(cls(), (cache, new, np.array(first), np.array([total])))
    yield Sample(cls(grows=False), (new, new[:, :, :2], np.array([1, 0]), np.array([9])))


@error_samples_of(UpdateCache)
def update_cache_errors(cls: type[UpdateCache]) -> Iterator[tuple[Sample, type[Exception]]]:
    x, first, total = np.zeros((2, 3, 4, 5), np.float32), np.zeros(2, np.int64), np.array([4])
    yield Sample(cls(), (x, x[:1], first, total)), ShapeError
    yield Sample(cls(), (x, x, first[:1], total)), ShapeError
    yield Sample(cls(), (x, x, first.astype(np.float32), total)), ShapeError
