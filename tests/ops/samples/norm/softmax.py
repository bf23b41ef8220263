"""Samples of the ops of `clrt/ops/norm/softmax.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.norm.softmax import SoftmaxBase
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(SoftmaxBase)
def softmax_base_samples(cls: type[SoftmaxBase]) -> Iterator[Sample]:
    rng = np.random.default_rng(19)
    cases: list[tuple[tuple[int, ...], int, bool]] = [
        ((1,), -1, False), ((3, 7), -1, False), ((3, 8), 1, False), ((2, 3, 65), -1, False),
        ((2, 5, 9), 1, False), ((4, 3), 0, False), ((2, 3, 5), 1, True), ((0, 3), -1, False),
        ((3, 0), -1, False), ((2, 3, 5), 0, True), ((2, 3, 300), 1, False), ((9, 37), 0, False),
    ]  # fmt: skip
    for shape, axis, flatten in cases:
        for dtype in (np.float32, np.float16):
            yield Sample(cls(axis, flatten), (np.asarray(rng.normal(0, 4, shape), dtype),))
    extreme = np.array([[1e4, 0, -1e4], [-np.inf, 0, 1], [-np.inf, -np.inf, -np.inf]])
    yield Sample(cls(), (extreme.astype(np.float32),))
    yield Sample(cls(0), (extreme.T.astype(np.float32),))


@error_samples_of(SoftmaxBase)
def softmax_base_errors(cls: type[SoftmaxBase]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(2), (np.zeros((2, 3), np.float32),)), ShapeError
