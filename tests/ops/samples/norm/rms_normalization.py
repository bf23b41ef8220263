"""Samples of the ops of `clrt/ops/norm/rms_normalization.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.norm.rms_normalization import RMSNormalization
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(RMSNormalization)
def rms_normalization_samples(cls: type[RMSNormalization]) -> Iterator[Sample]:
    rng = np.random.default_rng(17)
    for shape, axis in [((3, 1), -1), ((5, 17), -1), ((2, 3, 8), 1), ((6, 65), 0), ((0, 3), 1)]:
        for dtype in (np.float32, np.float16):
            row = shape[axis:] if axis >= 0 else shape[len(shape) + axis :]
            x, scale = (np.asarray(rng.standard_normal(s), dtype) for s in (shape, row))
            yield Sample(cls(axis), (x, scale))


@error_samples_of(RMSNormalization)
def rms_normalization_errors(
    cls: type[RMSNormalization],
) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3), np.float32)
    yield Sample(cls(), (x, np.zeros(4, np.float32))), ShapeError
