"""Samples of the ops of `clrt/ops/attention/fused_rotary.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.attention.fused_rotary import FusedRotary
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(FusedRotary)
def fused_rotary_samples(cls: type[FusedRotary]) -> Iterator[Sample]:
    rng = np.random.default_rng(23)
    for size in (2, 6, 16, 24, 40):
        for dtype in (np.float32, np.float16):
            op = cls(3, size, offset=5)
            x = rng.standard_normal((2, 4, 5 + 4 * size)).astype(dtype)
            apart = rng.standard_normal((2, 3, 4, size)).astype(dtype)
            for shape in ((1, 1, 4, size), (2, 1, 4, size), (2, 1, 1, size), (4, size)):
                tables = [rng.uniform(-1, 1, shape).astype(dtype) for _ in range(2)]
                yield Sample(op, (x, *tables))
                yield Sample(cls(3, size), (apart, *tables))
    tables = [np.ones((1, 1, 4, 2), np.float32)] * 2
    yield Sample(cls(3, 2), (np.zeros((0, 4, 6), np.float32), *tables))


@error_samples_of(FusedRotary)
def fused_rotary_errors(cls: type[FusedRotary]) -> Iterator[tuple[Sample, type[Exception]]]:
    x, table = np.zeros((1, 3, 8), np.float32), np.zeros((1, 1, 3, 4), np.float32)
    yield Sample(cls(3, 4), (x, table, table)), ShapeError
    yield Sample(cls(2, 4), (x, table[:, :, :2], table)), ShapeError
    yield Sample(cls(2, 4), (x, table.astype(np.float16), table)), ShapeError
    yield Sample(cls(1, 4, -1), (x, table, table)), ShapeError
    yield Sample(cls(-1, 4), (x, table, table)), ShapeError
