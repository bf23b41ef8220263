"""Samples of the ops of `clrt/ops/random/multinomial.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ops.random.multinomial import Multinomial
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Multinomial)
def multinomial_samples(cls: type[Multinomial]) -> Iterator[Sample]:
    rng = np.random.default_rng(31)
    for shape in [(1, 1), (3, 7), (2, 65), (0, 3)]:
        for dtype in (np.float32, np.float16):
            x = np.asarray(rng.standard_normal(shape), dtype)
            yield Sample(cls(11, 9), (x,))
            yield Sample(cls(12, 33, DType.INT64), (x,))
    chances = np.array([[0, 1, 0, 2, 0]], np.float32)
    with np.errstate(divide="ignore"):
        yield Sample(cls(1, 64), (np.log(chances),))


@error_samples_of(Multinomial)
def multinomial_errors(cls: type[Multinomial]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros(3, np.float32),)), ShapeError
