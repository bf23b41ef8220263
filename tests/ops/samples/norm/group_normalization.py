"""Samples of the ops of `clrt/ops/norm/group_normalization.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.norm.group_normalization import GroupNormalization
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(GroupNormalization)
def group_normalization_samples(cls: type[GroupNormalization]) -> Iterator[Sample]:
    rng = np.random.default_rng(41)
    for shape, groups in [
        ((1, 1, 1), 1), ((2, 6, 7), 3), ((2, 4, 3, 5), 2), ((2, 4, 9, 13), 2), ((0, 4, 2), 2),
    ]:  # fmt: skip
        for dtype in (np.float32, np.float16):
            for per_group in (False, True):
                x = np.asarray(rng.standard_normal(shape), dtype)
                affine = np.asarray(
                    rng.uniform(0.5, 2, (2, groups if per_group else shape[1])), dtype
                )
                yield Sample(cls(groups, per_group=per_group), (x, affine[0], affine[1]))


@error_samples_of(GroupNormalization)
def group_normalization_errors(
    cls: type[GroupNormalization],
) -> Iterator[tuple[Sample, type[Exception]]]:
    x, scale = np.zeros((2, 3, 4), np.float32), np.zeros(3, np.float32)
    yield Sample(cls(2), (x, scale, scale)), ShapeError
    yield Sample(cls(0), (x, scale, scale)), ShapeError
    yield Sample(cls(-1), (x, scale, scale)), ShapeError
    yield Sample(cls(3, per_group=True), (x, scale[:2], scale)), ShapeError
