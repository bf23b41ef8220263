"""Samples of the ops of `clrt/ops/movement/trilu.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.trilu import Trilu
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Trilu)
def trilu_samples(cls: type[Trilu]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for upper in (0, 1):
        x = rng.standard_normal((2, 4, 5)).astype(np.float32)
        yield Sample(cls(upper), (x,))
        for k in (-9, -1, 0, 2, 9):
            yield Sample(cls(upper), (x, np.array(k, np.int64)))
        yield Sample(cls(upper), (rng.integers(-9, 9, (3, 3)), np.array([1])))
        yield Sample(cls(upper), (np.ones((3, 1, 1), np.bool_),))
        yield Sample(cls(upper), (np.zeros((2, 0, 3), np.float32),))


@error_samples_of(Trilu)
def trilu_errors(cls: type[Trilu]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros(3, np.float32),)), ShapeError
