"""Samples of the ops of `clrt/ops/attention/tensor_scatter.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.attention.tensor_scatter import TensorScatter
from tests.ops.samples.registry import Sample, error_samples_of, samples_of

# Shape, axis, length of the update, mode and indices.
_Case = tuple[tuple[int, ...], int, int, Literal["linear", "circular"], list[int] | None]


@samples_of(TensorScatter)
def tensor_scatter_samples(cls: type[TensorScatter]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    cases: list[
        tuple[tuple[int, ...], int, int, Literal["linear", "circular"], list[int] | None]
    ] = [
        ((3, 2, 5, 4), -2, 2, "linear", [0, 3, 1]),
        ((3, 2, 5, 4), -2, 2, "circular", [4, -1, 12]),
        ((2, 3, 5, 20), -2, 2, "linear", [3, 0]),
        ((2, 5), 1, 5, "linear", None),
        ((2, 5), -1, 0, "circular", None),
        ((2, 3, 1, 65), 3, 7, "circular", [60, 0]),
        ((0, 3, 2), 1, 1, "linear", []),
    ]
    for shape, axis, length, mode, starts in cases:
        changed = list(shape)
        changed[axis] = length
        indices = None if starts is None else np.array(starts, np.int64)
        for dtype in (np.float32, np.int8):
            cache, update = (rng.integers(-9, 9, s).astype(dtype) for s in (shape, changed))
            yield Sample(cls(axis, mode), (cache, update, indices))


@error_samples_of(TensorScatter)
def tensor_scatter_errors(cls: type[TensorScatter]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3, 4), np.float32)
    yield Sample(cls(0), (x, x)), ShapeError
    yield Sample(cls(), (x[:, :2], x)), ShapeError
    yield Sample(cls(), (x, x[..., :2])), ShapeError
    yield Sample(cls(), (x, x, np.zeros(1, np.int64))), ShapeError
    yield Sample(cls(), (x, x, np.zeros(2, np.float32))), ShapeError
