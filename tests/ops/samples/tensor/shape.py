"""Samples of the ops of `clrt/ops/tensor/shape.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.ops.tensor.shape import Shape_, Size
from tests.ops.samples.registry import Sample, samples_of


@samples_of(Shape_)
def shape_samples(cls: type[Shape_]) -> Iterator[Sample]:
    x = np.zeros((2, 0, 3), np.float32)
    for op in (cls(), cls(1), cls(-2, -1), cls(-9, 9), cls(2, 1)):
        yield Sample(op, (x,))


@samples_of(Size)
def size_samples(cls: type[Size]) -> Iterator[Sample]:
    for shape in [(), (2, 3), (0, 4)]:
        yield Sample(cls(), (np.zeros(shape, np.int64),))
