"""Samples of the ops of `clrt/ops/matmul/routed_matmul.py`."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from clrt.errors import ShapeError
from clrt.ops.matmul.routed_matmul import RoutedMatMul
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(RoutedMatMul)
def routed_mat_mul_samples(cls: type[RoutedMatMul]) -> Iterator[Sample]:
    rng = np.random.default_rng(83)
    for tokens, used, count, rows, depth in (
        (1, 1, 1, 1, 1),
        (1, 2, 4, 33, 16),
        (2, 2, 5, 7, 37),
        (9, 3, 4, 34, 24),
        (21, 2, 3, 65, 19),
        (3, 1, 2, 5, 8),
        (0, 2, 3, 4, 5),
    ):
        weights = rng.uniform(-1, 1, (count, rows, depth)).astype(np.float32)
        experts = rng.integers(-count, count, (tokens, used), np.int64)
        for each in (1, used):
            x = rng.uniform(-1, 1, (tokens * used // each, depth)).astype(np.float32)
            yield Sample(cls(each), (x, weights, experts))
        yield Sample(cls(used), (x, weights.astype(np.float16), experts.astype(np.int32)))
        yield Sample(cls(used), (x, weights.astype(ml_dtypes.bfloat16), experts))
        yield Sample(cls(used), (x.astype(np.float16), weights.astype(np.float16), experts))


@error_samples_of(RoutedMatMul)
def routed_mat_mul_errors(
    cls: type[RoutedMatMul],
) -> Iterator[tuple[Sample, type[Exception]]]:
    x, weights = np.zeros((2, 8), np.float32), np.zeros((3, 4, 8), np.float32)
    experts = np.zeros((2, 2), np.int64)
    yield Sample(cls(1), (x, weights, experts)), ShapeError
    yield Sample(cls(2), (x[:, :7], weights, experts)), ShapeError
    yield Sample(cls(2), (x[0], weights, experts)), ShapeError
    yield Sample(cls(2), (x, weights.astype(np.float64), experts)), ShapeError
    yield Sample(cls(2), (x, weights, experts.astype(np.float32))), ShapeError
    yield Sample(cls(0), (x, weights, experts)), ShapeError
