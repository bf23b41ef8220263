"""Samples of the ops of `clrt/ops/movement/pad.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.pad import MODES, Pad
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Pad)
def pad_samples(cls: type[Pad]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    value = np.array(1.5, np.float32)
    for mode in MODES:
        for pads in ([0] * 6, [1, 0, 2, 0, 2, 1], [0, -1, 1, -1, 2, -2], [5, 0, 9, 0, 8, 0]):
            yield Sample(cls(mode), (x, np.array(pads, np.int64)))
        axes = np.array([-1, 0], np.int32)
        yield Sample(cls(mode), (x, np.array([1, 2, 3, 0]), None, axes))
        yield Sample(cls(mode), (rng.integers(-9, 9, (1, 2)), np.array([0, 1, 3, 4])))
        yield Sample(cls(mode), (rng.integers(0, 2, 65) > 0, np.array([1, 1])))
        yield Sample(cls(mode), (x.astype(np.float16), np.array([0, 0, 1, 0, 0, 1])))
    yield Sample(cls(), (x, np.array([1, 0, 0, 0, 1, 1]), value))
    yield Sample(cls(), (rng.integers(-9, 9, 3), np.array([2, 1]), np.array([-7])))
    yield Sample(cls(), (np.zeros((0, 2), np.float32), np.array([1, 0, 0, 1]), value))
    yield Sample(cls(), (x[0], np.array([-4, 0, 1, 0]), value))


@error_samples_of(Pad)
def pad_errors(cls: type[Pad]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3), np.float32)
    yield Sample(cls(), (x, np.array([1, 1]))), ShapeError
    yield Sample(cls(), (x, np.array([-2, 0, -1, 0]))), ShapeError
    yield Sample(cls("edge"), (x[:0], np.array([1, 0, 0, 0]))), ShapeError
