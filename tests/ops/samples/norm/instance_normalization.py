"""Samples of the ops of `clrt/ops/norm/instance_normalization.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.norm.instance_normalization import InstanceNormalization
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(InstanceNormalization)
def instance_normalization_samples(cls: type[InstanceNormalization]) -> Iterator[Sample]:
    rng = np.random.default_rng(43)
    for shape in [(1, 1, 1), (2, 3, 65), (2, 3, 4, 5), (0, 2, 3)]:
        for dtype in (np.float32, np.float16):
            x = np.asarray(rng.standard_normal(shape), dtype)
            affine = np.asarray(rng.uniform(0.5, 2, (2, shape[1])), dtype)
            yield Sample(cls(), (x, affine[0], affine[1]))


@error_samples_of(InstanceNormalization)
def instance_normalization_errors(
    cls: type[InstanceNormalization],
) -> Iterator[tuple[Sample, type[Exception]]]:
    x, scale = np.zeros((2, 3, 4), np.float32), np.zeros(2, np.float32)
    yield Sample(cls(), (x, scale, scale)), ShapeError
