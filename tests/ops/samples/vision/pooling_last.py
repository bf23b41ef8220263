"""Samples of the ops of `clrt/ops/vision/pooling_last.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.vision.pooling import AveragePool, WindowPool
from clrt.ops.vision.pooling_last import ChannelsLastAveragePool, ChannelsLastMaxPool
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


def _samples(cls: type[WindowPool]) -> Iterator[Sample]:
    rng = np.random.default_rng(23)
    around = (1, 1, 1, 1)
    for op, shape in [
        (cls((2,)), (2, 9, 3)),
        (cls((3, 3), (2, 2), pads=around), (2, 7, 8, 17)),
        (cls((3, 2), dilations=(2, 1), ceil_mode=True, strides=(2, 3)), (1, 9, 8, 16)),
        (cls((2, 2), auto_pad="SAME_LOWER"), (1, 5, 4, 5)),
        (cls((2, 3, 2), (1, 2, 2), pads=(0, 1, 0, 1, 1, 1)), (1, 3, 7, 6, 9)),
        (cls((2, 2)), (0, 5, 4, 5)),
    ]:
        x = rng.standard_normal(shape).astype(np.float32)
        yield Sample(op, (x,))
        if isinstance(op, AveragePool):
            yield Sample(replace(op, count_include_pad=True), (x,))
    x = rng.standard_normal((1, 5, 5, 9)).astype(np.float32)
    x[0, 2, 2, 3], x[0, 1, 1, 8], x[0, 0, 0] = np.nan, np.inf, -np.inf
    yield Sample(cls((2, 2)), (x,))


samples_of(ChannelsLastMaxPool)(_samples)
samples_of(ChannelsLastAveragePool)(_samples)


def _errors(cls: type[WindowPool]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 5, 5, 4), np.float32)
    yield Sample(cls((9, 9)), (x,)), ShapeError
    yield Sample(cls((3,)), (x,)), ShapeError
    yield Sample(cls((3, 3), (0, 1)), (x,)), ShapeError


error_samples_of(ChannelsLastMaxPool)(_errors)
error_samples_of(ChannelsLastAveragePool)(_errors)
