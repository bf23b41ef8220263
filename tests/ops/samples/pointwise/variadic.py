"""Samples of the ops of `clrt/ops/pointwise/variadic.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ops.pointwise.variadic import MAX_OPERANDS, Clip, Variadic
from tests.ops.samples.pointwise.table import draw, pointwise_samples
from tests.ops.samples.registry import Sample, samples_of


@samples_of(Clip)
def clip_samples(cls: type[Clip]) -> Iterator[Sample]:
    x = np.linspace(-5, 5, 23).astype(np.float32)
    low, high = np.float32(-1.5), np.float32(2.0)
    yield Sample(cls(), (x, np.asarray(low), np.asarray(high)))
    yield Sample(cls(True, False), (x, np.asarray(low)))
    yield Sample(cls(False, True), (x, np.asarray(high)))
    integers = np.arange(-9, 9)
    yield Sample(cls(), (integers, np.asarray(-2), np.asarray(5)))


@samples_of(Variadic)
def variadic_samples(cls: type[Variadic]) -> Iterator[Sample]:
    yield from pointwise_samples(cls)
    rng = np.random.default_rng(5)
    for count in (1, 3, MAX_OPERANDS):
        yield Sample(cls(), tuple(draw(cls, rng, (3, 5), DType.FLOAT32) for _ in range(count)))
