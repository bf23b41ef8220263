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
    past = rng.standard_normal((2, 2, 3, 8)).astype(np.float32)
    rows = [x.swapaxes(1, 2).reshape(2, 5, -1) for x in (q, k[:, :, :5], v[:, :, :5])]
    counts = {"q_num_heads": 4, "kv_num_heads": 2}
    for causal in (False, True):
        yield Sample(cls(is_causal=causal), (q, k[:, :, :5], v[:, :, :5], None, past, past))
        op = cls(is_causal=causal, left_window_size=2 if causal else -1, softcap=3.0, **counts)
        yield Sample(op, (*rows, rng.standard_normal((5, 8)).astype(np.float32), past, past))
        lengths = np.array([6, 2])
        yield Sample(cls(is_causal=causal), (q, k, v, None, None, None, lengths))


@error_samples_of(Attention)
def attention_errors(cls: type[Attention]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 3, 8), np.float32)
    yield Sample(cls(), (x, x, x)), ShapeError
    yield Sample(cls(q_num_heads=3, kv_num_heads=3), (x, x, x)), ShapeError
    yield Sample(cls(q_num_heads=4, kv_num_heads=8), (x, x, x)), ShapeError
    y = np.zeros((1, 1, 3, 8), np.float32)
    for past in (y[..., :4], np.zeros((2, 1, 3, 8), np.float32), y.astype(np.float16)):
        yield Sample(cls(), (y, y, y, None, past, past)), ShapeError
    yield Sample(cls(), (y, y, y, None, None, None, np.zeros(1, np.float32))), ShapeError
