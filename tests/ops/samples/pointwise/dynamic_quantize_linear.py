"""Samples of DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.pointwise.dynamic_quantize_linear import DynamicQuantizeLinear
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(DynamicQuantizeLinear)
def dynamic_quantize_linear_samples(cls: type[DynamicQuantizeLinear]) -> Iterator[Sample]:
    rng = np.random.default_rng(64)
    x = rng.standard_normal((2, 6, 5)).astype(np.float32)
    several_parts = rng.standard_normal((13, 701)).astype(np.float32)
    several_parts[12, 700] = -9
    for array in (x, several_parts, abs(x) + 1, -abs(x), 0 * x, x[:1, 0, 0], x[0, 0, 0], x[:0]):
        yield Sample(cls(), (np.asarray(array),))


@error_samples_of(DynamicQuantizeLinear)
def dynamic_quantize_linear_errors(
    cls: type[DynamicQuantizeLinear],
) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.ones(3, np.float64),)), ShapeError
