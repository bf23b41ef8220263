"""Samples of the ops of `clrt/ops/matmul/gemm.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.matmul.gemm import Gemm
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Gemm)
def gemm_samples(cls: type[Gemm]) -> Iterator[Sample]:
    rng = np.random.default_rng(6)
    for trans_a, trans_b in [(0, 0), (1, 0), (0, 1), (1, 1)]:
        for m, n, k in [(1, 1, 1), (5, 23, 7), (4, 24, 16), (65, 66, 17), (3, 2, 0), (0, 2, 3)]:
            a = rng.standard_normal((k, m) if trans_a else (m, k)).astype(np.float32)
            b = rng.standard_normal((n, k) if trans_b else (k, n)).astype(np.float32)
            yield Sample(cls(0.5, 1.0, trans_a, trans_b), (a, b))
            for shape in [(n,), (1, n), (m, 1), (1,), (), (m, n)]:
                c = rng.standard_normal(shape).astype(np.float32)
                yield Sample(cls(0.5, 2.0, trans_a, trans_b), (a, b, c))
    whole = [rng.integers(0, 9, s) for s in [(3, 4), (4, 5), (5,)]]
    yield Sample(cls(2.0, 3.0), tuple(x.astype(np.int32) for x in whole))
    nan = np.full((5,), np.nan, np.float32)
    yield Sample(cls(1.0, 0.0), (*(x.astype(np.float32) for x in whole[:2]), nan))


@error_samples_of(Gemm)
def gemm_errors(cls: type[Gemm]) -> Iterator[tuple[Sample, type[Exception]]]:
    a, b = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
    yield Sample(cls(), (a, a)), ShapeError
    yield Sample(cls(), (a[None], b)), ShapeError
    yield Sample(cls(), (a, b, np.zeros((3, 4), np.float32))), ShapeError
