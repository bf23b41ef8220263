"""Samples of the ops of `clrt/ops/conv/col2im.py`."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.op import TensorType
from clrt.ops.conv.col2im import Col2Im
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Col2Im)
def col2_im_samples(cls: type[Col2Im]) -> Iterator[Sample]:
    rng = np.random.default_rng(101)
    for op, image, kernel in [
        (cls(), (5, 6), (2, 3)),
        (cls((2, 1), (1, 0, 2, 1), (2, 1)), (5, 6), (2, 3)),
        (cls(), (7,), (3,)),
        (cls(strides=(1, 2, 2)), (3, 4, 5), (1, 2, 1)),
    ]:
        sizes = (np.array(image), np.array(kernel))
        types = [None, *(TensorType(DType.INT64, a.shape, a) for a in sizes)]
        columns = prod(op.windows(types).positions)
        x = rng.standard_normal((2, 3 * prod(kernel), columns)).astype(np.float32)
        yield Sample(op, (x, *sizes))


@error_samples_of(Col2Im)
def col2_im_errors(cls: type[Col2Im]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 4, 5), np.float32)
    yield Sample(cls(), (x, np.array([4, 4]), np.array([2, 2]))), ShapeError
    yield Sample(cls(), (x[0], np.array([4, 4]), np.array([2, 2]))), ShapeError
    good = np.zeros((1, 4, 9), np.float32), np.array([4, 4]), np.array([2, 2])
    for op in (
        *(cls(strides=(n, 1)) for n in (0, -1, 1 << 31)),
        *(cls(dilations=(n, 1)) for n in (0, -1)),
        cls(pads=(1, 1)),
    ):
        yield Sample(op, good), ShapeError
    yield Sample(cls(), (np.zeros((1, 5, 9), np.float32), *good[1:])), ShapeError
    yield Sample(cls(), (good[0], good[1], np.array([-2, 2]))), ShapeError
