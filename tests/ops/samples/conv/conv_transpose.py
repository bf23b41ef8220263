"""Samples of the ops of `clrt/ops/conv/conv_transpose.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.conv.conv_transpose import ConvTranspose
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(ConvTranspose)
def conv_transpose_samples(cls: type[ConvTranspose]) -> Iterator[Sample]:
    rng = np.random.default_rng(103)
    for op, x, w in [
        (cls(), (2, 3, 5), (3, 4, 3)),
        (cls(), (1, 2, 5), (2, 3, 0)),
        (cls(strides=(2, 3)), (1, 2, 3, 4), (2, 3, 3, 2)),
        (
            cls(pads=(1, 0, 1, 2), strides=(2, 2), output_padding=(1, 0)),
            (2, 2, 4, 3),
            (2, 2, 3, 4),
        ),
        (cls(dilations=(2, 1), group=2), (2, 4, 3, 3), (4, 3, 2, 2)),
        (cls(auto_pad="SAME_UPPER", strides=(2, 2)), (1, 2, 3, 4), (2, 2, 3, 3)),
        (cls(auto_pad="SAME_LOWER", strides=(2, 2)), (1, 2, 3, 4), (2, 2, 3, 3)),
        (cls(output_shape=(8, 7), strides=(2, 2)), (1, 2, 3, 3), (2, 2, 3, 3)),
        (cls(strides=(1, 2, 1)), (1, 2, 2, 3, 2), (2, 2, 2, 2, 3)),
        (cls(), (0, 2, 3), (2, 2, 2)),
    ]:
        shapes = (x, w, (w[1] * op.group,))
        arrays = tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)
        yield Sample(op, arrays)
        yield Sample(op, arrays[:2])
    yield Sample(cls(), tuple(a.astype(np.float16) for a in arrays))


@error_samples_of(ConvTranspose)
def conv_transpose_errors(cls: type[ConvTranspose]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 4, 5), np.float32)
    yield Sample(cls(), (x, np.zeros((3, 2, 3), np.float32))), ShapeError
    yield Sample(cls(strides=(1, 1)), (x, np.zeros((4, 2, 3), np.float32))), ShapeError
    yield Sample(cls(), (x, np.zeros((4, 2, 3, 3), np.float32))), ShapeError
    yield Sample(cls(pads=(4, 4)), (x, np.zeros((4, 2, 3), np.float32))), ShapeError
    w, bias = np.zeros((4, 2, 3), np.float32), np.zeros(2, np.float32)
    for op in (
        *(cls(strides=(n,)) for n in (0, -1, 1 << 31)),
        *(cls(dilations=(n,)) for n in (0, -1, 1 << 31)),
        *(cls(group=n) for n in (0, -1, 3)),
        cls(kernel_shape=(4,)),
        cls(output_padding=(-1,)),
        cls(output_shape=(1, 1, 1, 1)),
        cls(group=2),
    ):
        yield Sample(op, (x, w, bias)), ShapeError
    for wrong in (bias[:1], bias[None], bias.astype(np.int8)):
        yield Sample(cls(), (x, w, wrong)), ShapeError
