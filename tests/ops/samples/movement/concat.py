"""Samples of the ops of `clrt/ops/movement/concat.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.concat import Concat, Split
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Concat)
def concat_samples(cls: type[Concat]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for axis in (0, 1, -1):
        parts = [(2, 3, 4)] * 3
        arrays = [rng.standard_normal(s).astype(np.float32) for s in parts]
        yield Sample(cls(axis), (*arrays,))
    a, b = rng.integers(-9, 9, (2, 1)), rng.integers(-9, 9, (2, 65))
    yield Sample(cls(1), (a, b))
    yield Sample(cls(1), (a, a[:, :0], b))
    yield Sample(cls(1), (a, rng.integers(-9, 9, (2, 8200))))
    yield Sample(cls(0), (a > 0, b[:, :1] > 0))
    yield Sample(cls(0), (a.astype(np.uint8),))
    yield Sample(cls(0), (a[:0].astype(np.float16), a.astype(np.float16)))
    yield Sample(cls(0), (a[:0], a[:0]))


@error_samples_of(Concat)
def concat_errors(cls: type[Concat]) -> Iterator[tuple[Sample, type[Exception]]]:
    a = np.zeros((2, 3), np.float32)
    yield Sample(cls(0), (a, a[:, :2])), ShapeError
    yield Sample(cls(0), (a, a[0])), ShapeError
    yield Sample(cls(2), (a, a)), ShapeError
    yield Sample(cls(0), (a, a.astype(np.int8))), ShapeError


@samples_of(Split)
def split_samples(cls: type[Split]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 6, 5)).astype(np.float32)
    for axis, parts in [(0, 2), (1, 3), (1, 4), (-1, 2), (2, 1)]:
        yield Sample(cls(axis, parts), (x,))
    for axis, sizes in [(0, (1, 3)), (1, (2, 0, 4)), (-1, (5,))]:
        yield Sample(cls(axis), (x, np.array(sizes, np.int64)))
    yield Sample(cls(0, 2), (rng.integers(-9, 9, 7),))
    yield Sample(cls(0, 2), (rng.integers(0, 2, (2, 65)) > 0,))
    yield Sample(cls(1, 2), (np.zeros((0, 4), np.float16),))


@error_samples_of(Split)
def split_errors(cls: type[Split]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((4, 3), np.float32)
    yield Sample(cls(0), (x, np.array([1, 2]))), ShapeError
    yield Sample(cls(2, 1), (x,)), ShapeError
