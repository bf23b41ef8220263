"""Samples of the ops of `clrt/ops/tensor/range.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.tensor.range import Range
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Range)
def range_samples(cls: type[Range]) -> Iterator[Sample]:
    for dtype, start, limit, delta in [
        (np.int64, 0, 9, 1),
        (np.int64, 3, 20, 4),
        (np.int32, 10, 4, -2),
        (np.int64, 5, 2, 1),
        (np.float32, 0.5, 3, 0.75),
        (np.float32, 1, 0, -0.25),
        (np.int32, 7, -2_200_000, -2),  # no constant of the plan: it is too large
    ]:
        yield Sample(cls(), tuple(np.array(v, dtype) for v in (start, limit, delta)))


@error_samples_of(Range)
def range_errors(cls: type[Range]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.array(0), np.array(3), np.array(0))), ShapeError
