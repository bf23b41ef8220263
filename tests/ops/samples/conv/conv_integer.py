"""Samples of the ops of `clrt/ops/conv/conv_integer.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import Array
from clrt.ops.conv.conv_integer import ConvInteger
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(ConvInteger)
def conv_integer_samples(cls: type[ConvInteger]) -> Iterator[Sample]:
    rng = np.random.default_rng(73)

    def draw(shape: tuple[int, ...], dtype: type) -> Array:
        limits = np.iinfo(dtype)
        return np.asarray(rng.integers(limits.min, limits.max + 1, shape), dtype)

    ops: list[tuple[ConvInteger, tuple[int, ...], tuple[int, ...]]] = [
        (cls(), (1, 1, 4), (1, 1, 2)),
        (cls(pads=(1, 1, 1, 1)), (2, 3, 5, 6), (4, 3, 3, 3)),
        (cls(strides=(2, 1), dilations=(1, 2), group=2), (1, 4, 7, 9), (6, 2, 3, 3)),
        (cls(), (2, 5, 4, 3), (3, 5, 1, 1)),
        (cls(auto_pad="SAME_UPPER", strides=(2, 2, 1)), (1, 2, 3, 4, 5), (2, 2, 2, 2, 2)),
    ]
    for op, x, w in ops:
        yield Sample(op, (draw(x, np.uint8), draw(w, np.int8)))
        zeros = draw((), np.uint8), draw((w[0],), np.uint8)
        yield Sample(op, (draw(x, np.uint8), draw(w, np.uint8), *zeros))
        yield Sample(op, (draw(x, np.int8), draw(w, np.int8), None, draw((1,), np.int8)))


@error_samples_of(ConvInteger)
def conv_integer_errors(cls: type[ConvInteger]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 2, 5), np.uint8)
    yield Sample(cls(), (x, np.zeros((1, 3, 2), np.uint8))), ShapeError
    yield Sample(cls(), (x, np.zeros((1, 2, 2), np.float32))), ShapeError
