"""Samples of the ops of `clrt/ops/norm/layer_normalization.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import Array
from clrt.ops.norm.layer_normalization import LayerNormalization
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(LayerNormalization)
def layer_normalization_samples(cls: type[LayerNormalization]) -> Iterator[Sample]:
    rng = np.random.default_rng(13)
    cases: list[tuple[tuple[int, ...], int, bool, bool]] = [
        ((3, 1), -1, True, False), ((5, 7), -1, True, False), ((2, 3, 8), -1, True, True),
        ((5, 17), -1, False, False), ((2, 3, 33), 1, True, True), ((4, 384), -1, True, False),
        ((2, 5), 0, False, True), ((0, 4), -1, True, False), ((9, 15), -1, True, False),
        ((3, 51), -1, True, False),
    ]  # fmt: skip
    for shape, axis, has_bias, stats in cases:
        for dtype in (np.dtype(np.float32), np.dtype(np.float16)):
            x, scale, bias = _draw(rng, shape, axis, dtype)
            bias_or_not = (bias,) if has_bias else ()
            yield Sample(cls(axis, stats=stats), (x, scale, *bias_or_not))


@error_samples_of(LayerNormalization)
def layer_normalization_errors(
    cls: type[LayerNormalization],
) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3), np.float32)
    yield Sample(cls(2), (x, x[0])), ShapeError
    yield Sample(cls(), (x, np.zeros(4, np.float32))), ShapeError


def _draw(
    rng: np.random.Generator, shape: tuple[int, ...], axis: int, dtype: np.dtype[Any]
) -> list[Array]:
    row = shape[axis:] if axis >= 0 else shape[len(shape) + axis :]
    return [
        np.asarray(rng.standard_normal(s) * 2 + o, dtype)
        for s, o in ((shape, 0.5), (row, 1.0), (row, 0.0))
    ]
