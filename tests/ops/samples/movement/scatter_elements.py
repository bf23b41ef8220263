"""Samples of the ops of `clrt/ops/movement/scatter_elements.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.scatter_elements import ScatterElements
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(ScatterElements)
def scatter_elements_samples(cls: type[ScatterElements]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 5, 6)).astype(np.float32)
    for axis, shape in [(0, (3, 5, 6)), (1, (2, 3, 6)), (-1, (4, 5, 2)), (2, (4, 0, 6))]:
        updates = rng.standard_normal(shape).astype(np.float32)
        n = x.shape[axis]
        # A permutation of the axis for each line: no element is written twice.
        places = np.moveaxis(np.argsort(rng.random((n, 9, 9)), 0), 0, axis)
        distinct = np.ascontiguousarray(places[tuple(slice(s) for s in shape)] - n, np.int32)
        yield Sample(cls(axis), (x, distinct, updates))
        for reduction in ("add", "mul", "max", "min"):
            indices = rng.integers(-n, n, shape)
            yield Sample(cls(axis, reduction), (x, indices, updates))
            whole = (updates * 4).astype(np.int64)
            yield Sample(cls(axis, reduction), ((x * 4).astype(np.int64), indices, whole))
    one = np.array([3, -1])
    for dtype in (np.bool_, np.float16, np.int64):
        yield Sample(cls(), (np.zeros(9, dtype), one, np.ones(2, dtype)))


@error_samples_of(ScatterElements)
def scatter_elements_errors(cls: type[ScatterElements]) -> Iterator[tuple[Sample, type[Exception]]]:
    x, two = np.zeros((2, 3), np.float32), np.zeros((2, 2), np.int64)
    yield Sample(cls(), (x, two[0], x)), ShapeError
    yield Sample(cls(), (x, two, x)), ShapeError
    yield Sample(cls(-3), (x, two, x[:, :2])), ShapeError
    yield Sample(cls(), (x, two, two)), ShapeError
    yield Sample(cls(), (x, x[:, :2], x[:, :2])), ShapeError
