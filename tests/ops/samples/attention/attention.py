"""Samples of the ops of `clrt/ops/attention/attention.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.attention.attention import Attention
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Attention)
def attention_samples(cls: type[Attention]) -> Iterator[Sample]:
    rng = np.random.default_rng(61)
    q, k, v = (
        rng.standard_normal(s).astype(np.float32) for s in [(2, 4, 5, 8), *[(2, 2, 6, 8)] * 2]
    )
    yield Sample(cls(), (q, k, v))
    yield Sample(cls(is_causal=True), (q, k, v, q[:, :1, :, :6] > 0))


@error_samples_of(Attention)
def attention_errors(cls: type[Attention]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 3, 8), np.float32)
    yield Sample(cls(), (x, x, x)), ShapeError
    yield Sample(cls(q_num_heads=3, kv_num_heads=3), (x, x, x)), ShapeError
    yield Sample(cls(q_num_heads=4, kv_num_heads=8), (x, x, x)), ShapeError
