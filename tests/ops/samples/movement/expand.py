"""Samples of the ops of `clrt/ops/movement/expand.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.expand import Expand, Tile
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Expand)
def expand_samples(cls: type[Expand]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for shape, wanted in [
        ((1,), (65,)),
        ((), (2, 3)),
        ((3, 1), (2, 3, 4)),
        ((3, 4), (1, 1)),
        ((2, 1, 5), (2, 3, 5)),
        ((1, 3, 1, 2), (2, 1, 4, 1)),
        ((1, 3), (0, 3)),
    ]:
        target = np.array(wanted, np.int64)
        yield Sample(cls(), (rng.standard_normal(shape).astype(np.float32), target))
    yield Sample(cls(), (rng.integers(-9, 9, (2, 1)), np.array([2, 7])))
    yield Sample(cls(), (rng.integers(0, 2, (2, 1)) > 0, np.array([3, 2, 9])))
    yield Sample(cls(), (np.ones((1, 8), np.float16), np.array([3, 8])))


@error_samples_of(Expand)
def expand_errors(cls: type[Expand]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros((2, 3), np.float32), np.array([2, 4]))), ShapeError


@samples_of(Tile)
def tile_samples(cls: type[Tile]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for shape, repeats in [
        ((3,), (4,)),
        ((2, 3), (1, 1)),
        ((2, 3), (3, 1)),
        ((2, 3), (2, 5)),
        ((2, 1, 3), (2, 3, 2)),
        ((2, 3), (0, 1)),
        ((1, 65), (2, 1)),
    ]:
        x = rng.standard_normal(shape).astype(np.float32)
        yield Sample(cls(), (x, np.array(repeats, np.int64)))
    yield Sample(cls(), (rng.integers(-9, 9, (2, 2)), np.array([2, 2])))
    yield Sample(cls(), (rng.integers(0, 2, (2, 2)) > 0, np.array([1, 3])))


@error_samples_of(Tile)
def tile_errors(cls: type[Tile]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros((2, 3), np.float32), np.array([2]))), ShapeError
