"""Samples of the ops of `clrt/ops/random/random_tensor.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ops.random.random_tensor import Like, Shaped
from tests.ops.samples.registry import Sample, samples_of


@samples_of(Shaped)
def shaped_samples(cls: type[Shaped]) -> Iterator[Sample]:
    # A larger result than is folded when a plan is made.
    yield Sample(cls(5, shape=(3, 2), dtype=DType.FLOAT16), ())
    yield Sample(cls(5, shape=(1025, 1025)), ())


@samples_of(Like)
def like_samples(cls: type[Like]) -> Iterator[Sample]:
    for shape in [(), (7,), (3, 0), (5, 13)]:
        yield Sample(cls(1 << 40 | 7), (np.zeros(shape, np.float32),))
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        yield Sample(cls(9, dtype=dtype), (np.zeros((2, 33), np.int64),))
