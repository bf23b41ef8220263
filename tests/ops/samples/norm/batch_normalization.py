"""Samples of the ops of `clrt/ops/norm/batch_normalization.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.norm.batch_normalization import BatchNormalization
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(BatchNormalization)
def batch_normalization_samples(cls: type[BatchNormalization]) -> Iterator[Sample]:
    rng = np.random.default_rng(37)
    for shape in [
        (1, 1, 1), (2, 3), (2, 5, 7), (2, 3, 4, 5), (2, 3, 9, 13), (1, 2, 2, 3, 3), (0, 3, 2),
    ]:  # fmt: skip
        for dtype, stat in [("f4", "f4"), ("f2", "f2"), ("f2", "f4")]:
            x = np.asarray(rng.standard_normal(shape), dtype)
            stats = [np.asarray(rng.uniform(0.5, 2, shape[1]), stat) for _ in range(4)]
            yield Sample(cls(1e-3), (x, *stats))


@error_samples_of(BatchNormalization)
def batch_normalization_errors(
    cls: type[BatchNormalization],
) -> Iterator[tuple[Sample, type[Exception]]]:
    x, wrong = np.zeros((2, 3, 4), np.float32), np.zeros(4, np.float32)
    yield Sample(cls(), (x, wrong, wrong, wrong, wrong)), ShapeError
