"""Samples of the ops of `clrt/ops/conv/conv.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.conv.conv import Conv
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Conv)
def conv_samples(cls: type[Conv]) -> Iterator[Sample]:
    rng = np.random.default_rng(13)

    def make(op: Conv, x: tuple[int, ...], w: tuple[int, ...], bias: bool = True) -> Sample:
        shapes = (x, w, (w[0],)) if bias else (x, w)
        arrays = (rng.standard_normal(s).astype(np.float32) for s in shapes)
        return Sample(op, tuple(arrays))

    for op, x, w in [
        (cls(), (2, 3, 9), (4, 3, 3)),
        (cls((1,)), (2, 3, 9), (5, 3, 1)),
        (cls((1, 1), group=2), (2, 6, 3, 5), (4, 3, 1, 1)),
        (cls((1, 1), (2, 2)), (2, 3, 5, 4), (4, 3, 1, 1)),
        (cls((3, 2), (2, 1), (1, 2), (1, 0, 2, 1)), (2, 3, 8, 9), (5, 3, 3, 2)),
        (cls((3, 3), pads=(1, 1, 1, 1), group=2), (3, 4, 5, 6), (6, 2, 3, 3)),
        (cls((3, 3), pads=(1, 1, 1, 1), group=4), (2, 4, 5, 5), (4, 1, 3, 3)),
        (cls((3,), (2,), (2,), (3, 1), group=3), (2, 3, 70), (6, 1, 3)),
        (cls((2, 3, 3), pads=(1, 1, 2, 0, 1, 2), group=2), (1, 2, 3, 20, 4), (2, 1, 2, 3, 3)),
        (cls((3, 3), (2, 2), auto_pad="SAME_UPPER"), (1, 2, 6, 7), (3, 2, 3, 3)),
        (cls((3, 4), (2, 2), auto_pad="SAME_LOWER"), (1, 2, 6, 7), (3, 2, 3, 4)),
        (cls((3, 3), auto_pad="VALID"), (1, 2, 6, 7), (3, 2, 3, 3)),
        (cls((4, 4), (4, 4)), (2, 3, 8, 12), (24, 3, 4, 4)),
        (cls((2, 2, 2), pads=(0, 1, 0, 1, 0, 1)), (1, 2, 3, 4, 5), (3, 2, 2, 2, 2)),
        (cls((3, 3)), (0, 2, 5, 5), (3, 2, 3, 3)),
    ]:
        yield make(op, x, w)
        yield make(op, x, w, bias=False)
    half = make(cls((3, 3), pads=(1, 1, 1, 1)), (1, 2, 5, 5), (3, 2, 3, 3))
    yield Sample(half.op, tuple(a.astype(np.float16) for a in half.inputs if a is not None))


@error_samples_of(Conv)
def conv_errors(cls: type[Conv]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 4, 5, 5), np.float32)
    for op, shape in [
        (cls(), (2, 3, 3, 3)),
        (cls(group=2), (3, 2, 3, 3)),
        (cls((2, 2)), (2, 4, 3, 3)),
        (cls(), (2, 4, 3)),
        (cls(), (2, 4, 9, 9)),
        (cls(strides=(1,)), (2, 4, 3, 3)),
        (cls(strides=(0, 1)), (2, 4, 3, 3)),
        (cls(strides=(1, 1 << 31)), (2, 4, 3, 3)),
        (cls(dilations=(1, -1)), (2, 4, 3, 3)),
        (cls(pads=(0, 1 << 30, 0, 0)), (2, 4, 3, 3)),
        (cls(group=0), (2, 4, 3, 3)),
    ]:
        yield Sample(op, (x, np.zeros(shape, np.float32))), ShapeError
    yield Sample(cls(), (x, np.zeros((2, 4, 3, 3), np.float32), x[0, 0, 0])), ShapeError
