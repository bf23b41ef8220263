"""Samples of the ops of `clrt/ops/movement/reverse_sequence.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.reverse_sequence import ReverseSequence
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(ReverseSequence)
def reverse_sequence_samples(cls: type[ReverseSequence]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for op, shape in [(cls(), (5, 4)), (cls(0, 1), (4, 5)), (cls(0, 1), (4, 5, 2, 3))]:
        x = rng.standard_normal(shape).astype(np.float32)
        yield Sample(op, (x, np.array([0, 5, 1, 3])))
    yield Sample(cls(), (rng.integers(-9, 9, (3, 1, 65)), np.array([2])))
    yield Sample(cls(), (np.zeros((3, 0), np.float16), np.zeros(0, np.int64)))


@error_samples_of(ReverseSequence)
def reverse_sequence_errors(cls: type[ReverseSequence]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3), np.float32)
    yield Sample(cls(), (x, np.array([1, 2]))), ShapeError
    yield Sample(cls(1, 1), (x, np.array([1, 2, 1]))), ShapeError
    yield Sample(cls(), (x[0], np.array([1]))), ShapeError
    yield Sample(cls(), (x, np.zeros(3, np.float64))), ShapeError
