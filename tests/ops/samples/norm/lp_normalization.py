"""Samples of the ops of `clrt/ops/norm/lp_normalization.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.norm.lp_normalization import LpNormalization
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(LpNormalization)
def lp_normalization_samples(cls: type[LpNormalization]) -> Iterator[Sample]:
    rng = np.random.default_rng(31)
    for shape, axis in [((1,), 0), ((3, 65), -1), ((2, 5, 4), 1), ((0, 3), -1)]:
        for p in (1, 2):
            for dtype in (np.float32, np.float16):
                yield Sample(cls(axis, p), (np.asarray(rng.standard_normal(shape), dtype),))
    yield Sample(cls(), (np.zeros((2, 3), np.float32),))


@error_samples_of(LpNormalization)
def lp_normalization_errors(cls: type[LpNormalization]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(2), (np.zeros((2, 3), np.float32),)), ShapeError
