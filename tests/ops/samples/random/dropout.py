"""Samples of the ops of `clrt/ops/random/dropout.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ops.random.dropout import Dropout
from tests.ops.samples.registry import Sample, samples_of


@samples_of(Dropout)
def dropout_samples(cls: type[Dropout]) -> Iterator[Sample]:
    for shape in [(), (65,), (2, 0)]:
        for dtype in (np.float32, np.float16, DType.BFLOAT16.numpy):
            x = np.full(shape, 2.5, dtype)
            yield Sample(cls(0, False), (x,))
            yield Sample(cls(0, True), (x,))
            for ratio in (0, 0.75):
                part = np.array(ratio, dtype)
                yield Sample(cls(7), (x, part, np.array(True)))
                yield Sample(cls(7), (x, part, np.array(False)))
