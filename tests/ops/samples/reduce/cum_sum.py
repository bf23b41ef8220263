"""Samples of the ops of `clrt/ops/reduce/cum_sum.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.reduce.cum_sum import Cumulative
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Cumulative)
def cumulative_samples(cls: type[Cumulative]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for exclusive in (0, 1):
        for reverse in (0, 1):
            op = cls(exclusive, reverse)
            x = rng.standard_normal((3, 4, 5)).astype(np.float32)
            for axis in (0, 1, -1):
                yield Sample(op, (x, np.array(axis)))
            yield Sample(op, (rng.standard_normal((2, 5, 43)).astype(np.float32), np.array(1)))
            yield Sample(op, (rng.standard_normal((6, 9)), np.array(1)))
            yield Sample(op, (rng.integers(-9, 9, (2, 65)), np.array([1], np.int32)))
            yield Sample(op, (x.astype(np.float16), np.array(1)))
            yield Sample(op, (np.zeros((2, 0), np.float32), np.array(1)))
            yield Sample(op, (np.ones(1, np.int32), np.array(0)))


@error_samples_of(Cumulative)
def cumulative_errors(cls: type[Cumulative]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros((2, 3), np.float32), np.array(2))), ShapeError
    yield Sample(cls(), (np.zeros((), np.float32), np.array(0))), ShapeError
