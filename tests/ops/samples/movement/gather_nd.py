"""Samples of the ops of `clrt/ops/movement/gather_nd.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.gather_nd import GatherND, ScatterND
from clrt.ops.movement.scatter_elements import REDUCTIONS
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(GatherND)
def gather_nd_samples(cls: type[GatherND]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    for b, shape in [(0, (6, 1)), (0, (2, 3, 4)), (0, (2,)), (1, (2, 7, 2)), (2, (2, 3, 1))]:
        yield Sample(cls(b), (x, rng.integers(-2, 2, shape)))
    yield Sample(cls(), (x, np.zeros((0, 2), np.int64)))
    yield Sample(cls(), (x, np.zeros((3, 0), np.int64)))
    for dtype in (np.int64, np.bool_, np.float16):
        yield Sample(cls(), (rng.integers(0, 2, (3, 9)).astype(dtype), np.array([[2], [-1]])))


@error_samples_of(GatherND)
def gather_nd_errors(cls: type[GatherND]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3), np.float32)
    yield Sample(cls(), (x, np.zeros((4, 3), np.int64))), ShapeError
    yield Sample(cls(1), (x, np.zeros(1, np.int64))), ShapeError
    yield Sample(cls(-1), (x, np.zeros((2, 1), np.int64))), ShapeError
    yield Sample(cls(1), (x, np.zeros((3, 1), np.int64))), ShapeError
    yield Sample(cls(), (x, np.zeros((4, 2), np.float32))), ShapeError


@samples_of(ScatterND)
def scatter_nd_samples(cls: type[ScatterND]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    for shape in [(2, 1), (2, 3, 2), (6, 3), (2,), (0, 1)]:
        indices = rng.integers(-3, 3, shape)
        for reduction in REDUCTIONS:
            updates = rng.standard_normal(shape[:-1] + x.shape[shape[-1] :])
            yield Sample(cls(reduction), (x, indices, updates.astype(np.float32)))
            whole = ((x * 4).astype(np.int64), indices, (updates * 4).astype(np.int64))
            yield Sample(cls(reduction), whole)
    rows = rng.standard_normal((70, 3)).astype(np.float32)
    updates = rng.standard_normal((200, 3)).astype(np.float32)
    yield Sample(cls("add"), (rows, rng.integers(-70, 70, (200, 1)), updates))
    long = rng.standard_normal((3, 2051)).astype(np.float32)
    yield Sample(cls("add"), (long, np.array([[1], [-1], [1]]), long + 1))
    for dtype in (np.bool_, np.float16, np.int64):
        yield Sample(cls(), (np.zeros(65, dtype), np.array([[3], [-1]]), np.ones(2, dtype)))


@error_samples_of(ScatterND)
def scatter_nd_errors(cls: type[ScatterND]) -> Iterator[tuple[Sample, type[Exception]]]:
    x, index = np.zeros((2, 3), np.float32), np.zeros((4, 1), np.int64)
    yield Sample(cls(), (x, index, x)), ShapeError
    yield Sample(cls(), (x, np.zeros((1, 3), np.int64), x[0, :1])), ShapeError
    yield Sample(cls(), (x, index[:1], np.zeros((1, 3), np.int8))), ShapeError
    yield Sample(cls(), (x, index[:1].astype(bool), x[:1])), ShapeError
