"""Samples of the ops of `clrt/ops/reduce/argmax.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.reduce.argmax import ArgExtremum
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(ArgExtremum)
def arg_extremum_samples(cls: type[ArgExtremum]) -> Iterator[Sample]:
    rng = np.random.default_rng(29)
    for shape, axis in [((1,), 0), ((65,), 0), ((3, 7), -1), ((2, 5, 4), 1), ((0, 3), 1)]:
        for dtype in (np.float32, np.float16, np.int64, np.int32, np.uint8):
            x = np.asarray(rng.integers(0, 4, shape), dtype)
            yield Sample(cls(axis), (x,))
            yield Sample(cls(axis, False, True), (x,))
    for shape, axis in [((3, 40), 1), ((2, 5, 37), 1)]:
        for last in (False, True):
            x = rng.integers(0, 4, shape).astype(np.float32)
            yield Sample(cls(axis, select_last_index=last), (x,))
            x[x == 3] = np.nan
            yield Sample(cls(axis, select_last_index=last), (x,))
    nan = np.array([[1, np.nan, 3], [np.inf, 2, -np.inf]], np.float32)
    yield Sample(cls(1), (nan,))
    yield Sample(cls(0, select_last_index=True), (np.repeat(nan, 2, axis=0),))


@error_samples_of(ArgExtremum)
def arg_extremum_errors(cls: type[ArgExtremum]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(2), (np.zeros((2, 3), np.float32),)), ShapeError
