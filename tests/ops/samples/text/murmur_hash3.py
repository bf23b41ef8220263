"""Samples of the ops of `clrt/ops/text/murmur_hash3.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.ops.text.murmur_hash3 import MurmurHash3
from tests.ops.samples.registry import Sample, samples_of


@samples_of(MurmurHash3)
def murmur_hash3_samples(cls: type[MurmurHash3]) -> Iterator[Sample]:
    for dtype in (np.int32, np.uint32, np.int64, np.float64):
        yield Sample(cls(), (np.array([[0, 1, 99]], dtype),))
        yield Sample(cls(0, 7), (np.array([[0, 1, 99]], dtype),))
    yield Sample(cls(), (np.array(["", "a", "ab", "abc", "abcd", "日本"]),))
    yield Sample(cls(), (np.zeros((0, 2), np.int32),))
