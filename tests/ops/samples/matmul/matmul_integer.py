"""Samples of the ops of `clrt/ops/matmul/matmul_integer.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import Array
from clrt.ops.matmul.matmul_integer import MatMulInteger
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(MatMulInteger)
def matmul_integer_samples(cls: type[MatMulInteger]) -> Iterator[Sample]:
    rng = np.random.default_rng(71)

    def draw(shape: tuple[int, ...], dtype: type) -> Array:
        limits = np.iinfo(dtype)
        return np.asarray(rng.integers(limits.min, limits.max + 1, shape), dtype)

    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((1, 5), (5, 1)),
        ((3, 17), (17, 25)),
        ((9, 300), (300, 49)),
        ((2, 3, 7, 5), (5, 9)),
        ((2, 1, 3, 4), (3, 4, 17)),
        ((5,), (5, 7)),
        ((3, 0), (0, 5)),
    ]
    for a, b in shapes:
        for left, right in ((np.uint8, np.int8), (np.int8, np.uint8)):
            yield Sample(cls(), (draw(a, left), draw(b, right)))
            zeros = (draw((), left), draw((1,), right))
            yield Sample(cls(), (draw(a, left), draw(b, right), *zeros))
    x, w = draw((2, 5, 7), np.uint8), draw((2, 7, 9), np.uint8)
    yield Sample(cls(), (x, w, draw((5,), np.uint8), draw((9,), np.uint8)))
    yield Sample(cls(), (x, w, draw((2, 5, 1), np.uint8), draw((2, 1, 9), np.uint8)))
    # The largest sum of products that float32 holds, and past it.
    largest = (np.full((1, 257), 255, np.uint8), np.full((257, 3), 255, np.uint8))
    yield Sample(cls(), largest)


@error_samples_of(MatMulInteger)
def matmul_integer_errors(cls: type[MatMulInteger]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3), np.int8)
    yield Sample(cls(), (x, np.zeros((2, 3), np.int8))), ShapeError
    yield Sample(cls(), (x, np.zeros((3, 3), np.int16))), ShapeError
    yield Sample(cls(), (x, x.T, np.zeros((), np.uint8))), ShapeError
