"""Samples of the ops of `clrt/ops/movement/views.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.views import Flatten, Identity, Reshape, Squeeze, Unsqueeze
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Identity)
def identity_samples(cls: type[Identity]) -> Iterator[Sample]:
    for shape in [(), (3,), (0, 2)]:
        yield Sample(cls(), (np.ones(shape, np.float32),))


@samples_of(Reshape)
def reshape_samples(cls: type[Reshape]) -> Iterator[Sample]:
    for shape, wanted in [((2, 3), (3, 2)), ((4, 6), (0, -1, 2)), ((3,), (-1, 1)), ((1,), ())]:
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        yield Sample(cls(), (x, np.array(wanted, np.int64)))
    yield Sample(cls(1), (np.zeros((3, 0), np.int64), np.array([0, 5], np.int64)))
    yield Sample(cls(), (np.zeros((0, 8), np.float32), np.array([0, -1, 4], np.int64)))


@error_samples_of(Reshape)
def reshape_errors(cls: type[Reshape]) -> Iterator[tuple[Sample, type[Exception]]]:
    for wanted in [(5,), (-1, -1), (4, -1), (2, 3, 0), (-2, 3)]:
        x = np.zeros((2, 3), np.float32)
        yield Sample(cls(), (x, np.array(wanted, np.int64))), ShapeError


@samples_of(Flatten)
def flatten_samples(cls: type[Flatten]) -> Iterator[Sample]:
    for axis in (-3, -1, 0, 1, 3):
        yield Sample(cls(axis), (np.ones((2, 3, 4), np.float32),))
    yield Sample(cls(), (np.ones((0, 4), np.int64),))


@error_samples_of(Flatten)
def flatten_errors(cls: type[Flatten]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(3), (np.ones((2, 3), np.float32),)), ShapeError


@samples_of(Squeeze)
def squeeze_samples(cls: type[Squeeze]) -> Iterator[Sample]:
    x = np.ones((1, 3, 1, 2), np.float32)
    yield Sample(cls(), (x,))
    for axes in ([0], [-2, 0], [2], []):
        yield Sample(cls(), (x, np.array(axes, np.int64)))


@error_samples_of(Squeeze)
def squeeze_errors(cls: type[Squeeze]) -> Iterator[tuple[Sample, type[Exception]]]:
    for axis in (1, 4):
        yield Sample(cls(), (np.ones((1, 3), np.int64), np.array([axis]))), ShapeError


@samples_of(Unsqueeze)
def unsqueeze_samples(cls: type[Unsqueeze]) -> Iterator[Sample]:
    for shape, axes in [((), [0]), ((2, 3), [1]), ((2, 3), [-1, 0]), ((0,), [0, 2])]:
        yield Sample(cls(), (np.ones(shape, np.float32), np.array(axes, np.int64)))


@error_samples_of(Unsqueeze)
def unsqueeze_errors(cls: type[Unsqueeze]) -> Iterator[tuple[Sample, type[Exception]]]:
    for axes in ([3], [0, -3]):
        yield Sample(cls(), (np.ones((2,), np.int64), np.array(axes))), ShapeError
