"""Samples of the ops of `clrt/ops/tensor/non_zero.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.tensor.non_zero import Compress, NonZero
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(NonZero)
def non_zero_samples(cls: type[NonZero]) -> Iterator[Sample]:
    for shape in [(), (5,), (3, 4), (0, 2)]:
        yield Sample(cls(), (np.arange(np.prod(shape)).reshape(shape) % 3,))


@samples_of(Compress)
def compress_samples(cls: type[Compress]) -> Iterator[Sample]:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    yield Sample(cls(), (x, np.array([True, False, True])))
    yield Sample(cls(), (x, x > 4))
    yield Sample(cls(-1), (x, np.array([False, True, True, False])))
    yield Sample(cls(0), (x, np.zeros(3, np.bool_)))


@error_samples_of(Compress)
def compress_errors(cls: type[Compress]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3), np.float32)
    yield Sample(cls(2), (x, np.zeros(2, np.bool_))), ShapeError
    yield Sample(cls(0), (x, np.zeros((2, 1), np.bool_))), ShapeError
