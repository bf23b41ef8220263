"""Samples of the ops of `clrt/ops/norm/hardmax.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.ops.norm.hardmax import Hardmax
from tests.ops.samples.registry import Sample, samples_of


@samples_of(Hardmax)
def hardmax_samples(cls: type[Hardmax]) -> Iterator[Sample]:
    rng = np.random.default_rng(31)
    for shape, axis, flatten in [
        ((1,), -1, False),
        ((3, 65), 1, False),
        ((2, 5, 4), 1, False),
        ((2, 3, 5), 1, True),
        ((0, 3), -1, False),
        ((), 0, False),
    ]:
        for dtype in (np.float32, np.float16):
            yield Sample(cls(axis, flatten), (rng.integers(0, 4, shape).astype(dtype),))
    yield Sample(cls(0), (np.array([1, np.nan, np.inf], np.float32),))
