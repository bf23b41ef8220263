"""Samples of the ops of `clrt/ops/conv/deform_conv.py`."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.conv.deform_conv import DeformConv
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(DeformConv)
def deform_conv_samples(cls: type[DeformConv]) -> Iterator[Sample]:
    rng = np.random.default_rng(113)
    for op, x, w, out in [
        (cls(), (1, 1, 3, 3), (1, 1, 2, 2), (2, 2)),
        (cls((2, 1), 2, (), 2, (1, 0, 1, 1), (1, 2)), (2, 4, 5, 6), (4, 2, 2, 3), (5, 3)),
    ]:
        places = op.offset_group * prod(w[2:])
        shapes = (x, w, (x[0], 2 * places, *out), (w[0],), (x[0], places, *out))
        arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        yield Sample(op, tuple(arrays))
        yield Sample(op, tuple(arrays[:3]))
        yield Sample(op, (*arrays[:3], None, arrays[4]))


@error_samples_of(DeformConv)
def deform_conv_errors(cls: type[DeformConv]) -> Iterator[tuple[Sample, type[Exception]]]:
    x, w = np.zeros((1, 2, 3, 3), np.float32), np.zeros((1, 1, 2, 2), np.float32)
    yield Sample(cls(), (x, w, np.zeros((1, 8, 2, 2), np.float32))), ShapeError
    yield Sample(cls(), (x[0], w, np.zeros((1, 8, 2, 2), np.float32))), ShapeError
    good = [*next(deform_conv_samples(cls)).inputs]
    for index, wrong in [
        *((0, np.zeros((n, 1, 3, 3), "f4")) for n in (0, 2)),
        (1, np.zeros((1, 1, 2, 1), "f4")),
        (1, np.zeros((1, 1, 2, 2), np.int8)),
        *((2, np.zeros((n, m, 2, 2), "f4")) for n, m in ((2, 8), (1, 7), (1, 9))),
        *((3, np.zeros(n, "f4")) for n in (0, 2)),
        *((4, np.zeros((n, m, k, 2), "f4")) for n, m, k in ((2, 4, 2), (1, 3, 2), (1, 4, 1))),
    ]:
        yield Sample(cls(), (*good[:index], wrong, *good[index + 1 :])), ShapeError
    for op in (
        *(cls(strides=(n, 1)) for n in (0, -1, 1 << 31)),
        *(cls(dilations=(n, 1)) for n in (0, -1, 1 << 31)),
        *(cls(group=n) for n in (0, -1)),
        *(cls(offset_group=n) for n in (0, -1)),
        cls(strides=(1,)),
        cls(kernel_shape=(3, 2)),
    ):
        yield Sample(op, (*good,)), ShapeError
