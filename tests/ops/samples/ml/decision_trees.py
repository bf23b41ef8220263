"""Samples of the ops of `clrt/ops/ml/decision_trees.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.ml.decision_trees import AVERAGE, MAX, MIN, SUM, Aggregate, DecisionTrees
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(DecisionTrees)
def decision_trees_samples(cls: type[DecisionTrees]) -> Iterator[Sample]:
    rng = np.random.default_rng(41)
    nodes = np.array(
        [
            [0, 0, 1, ~0],
            [1, 9, ~1, 2],
            [2, 3, ~2, ~3],
            [1, 2, 4, ~4],
            [0, 12, ~0, 5],
            [2, 5, ~5, ~1],
        ],
        np.int32,
    )
    roots, starts = np.array([0, 3, ~2, 1], np.int32), np.array([0, 1, 2, 4, 5, 5, 7], np.int32)
    entries = np.array([0, 1, 0, 1, 2, 2, 0], np.int32)
    splits, weights = rng.integers(-1, 2, 6).astype(float), rng.standard_normal(7)
    for rows in (0, 1, 9):
        x = rng.integers(-2, 3, (rows, 3)).astype(np.float32)
        x[::4, 1] = np.nan
        for dtype in (np.float32, np.float16):
            aggregates: tuple[Aggregate, ...] = (AVERAGE, SUM, MIN, MAX)
            for aggregate in aggregates:
                tables = (nodes, splits.astype(np.float32), roots, starts, entries)
                given = (x.astype(dtype), *tables, weights.astype(np.float32))
                yield Sample(cls(4, aggregate), given)


@error_samples_of(DecisionTrees)
def decision_trees_errors(cls: type[DecisionTrees]) -> Iterator[tuple[Sample, type[Exception]]]:
    (_, *tables) = next(decision_trees_samples(cls)).inputs
    yield Sample(cls(4), (np.zeros(3, np.float32), *tables)), ShapeError
    x = np.zeros((2, 3), np.float32)
    yield Sample(cls(4), (x[:, :2], *tables)), ShapeError
