"""Samples of the ops of `clrt/ops/tensor/eye_like.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ops.tensor.eye_like import EyeLike
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(EyeLike)
def eye_like_samples(cls: type[EyeLike]) -> Iterator[Sample]:
    x = np.zeros((4, 5), np.float32)
    for dtype in (None, DType.INT64, DType.BOOL, DType.FLOAT16, DType.INT32):
        for k in (-9, -1, 0, 2):
            yield Sample(cls(dtype, k), (x,))
    yield Sample(cls(), (np.zeros((0, 3), np.int64),))
    yield Sample(cls(), (np.zeros((1, 1), np.int64),))


@error_samples_of(EyeLike)
def eye_like_errors(cls: type[EyeLike]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros(3, np.float32),)), ShapeError
