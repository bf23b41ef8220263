"""Samples of the ops of `clrt/ops/movement/depth_to_space.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.movement.depth_to_space import DepthToSpace, SpaceToDepth
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(DepthToSpace)
def depth_to_space_samples(cls: type[DepthToSpace]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for mode in ("DCR", "CRD"):
        x = rng.standard_normal((2, 12, 3, 5)).astype(np.float32)
        yield Sample(cls(2, mode), (x,))
        yield Sample(cls(1, mode), (x,))
        yield Sample(cls(3, mode), (rng.integers(-9, 9, (1, 9, 1, 2)),))
        yield Sample(cls(2, mode), (np.zeros((0, 4, 1, 2), np.float16),))


@error_samples_of(DepthToSpace)
def depth_to_space_errors(cls: type[DepthToSpace]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(2), (np.zeros((1, 6, 2, 2), np.float32),)), ShapeError
    yield Sample(cls(2), (np.zeros((4, 2, 2), np.float32),)), ShapeError


@samples_of(SpaceToDepth)
def space_to_depth_samples(cls: type[SpaceToDepth]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    yield Sample(cls(2), (rng.standard_normal((2, 3, 4, 6)).astype(np.float32),))
    yield Sample(cls(2, "CRD"), (rng.standard_normal((2, 3, 4, 6)).astype(np.float32),))
    yield Sample(cls(3), (rng.integers(-9, 9, (1, 1, 3, 6)),))
    yield Sample(cls(1), (rng.integers(0, 2, (1, 2, 3, 65)) > 0,))
    yield Sample(cls(2), (np.zeros((0, 1, 2, 2), np.float16),))


@error_samples_of(SpaceToDepth)
def space_to_depth_errors(cls: type[SpaceToDepth]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(2), (np.zeros((1, 1, 3, 2), np.float32),)), ShapeError
    yield Sample(cls(2), (np.zeros((4, 2, 2), np.float32),)), ShapeError
