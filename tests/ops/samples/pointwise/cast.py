"""Samples of the ops of `clrt/ops/pointwise/cast.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ops.pointwise.cast import FLOAT8, ROUND_MODES, BitCast, Cast
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Cast)
def cast_samples(cls: type[Cast]) -> Iterator[Sample]:
    for source in (DType.FLOAT32, DType.INT64, DType.INT32, DType.BOOL):
        x = np.array([0, 1, 2.7, 3, 100, 0.4, 9]).astype(source.numpy)
        for to in (DType.FLOAT32, DType.INT64, DType.INT32, DType.BOOL, DType.UINT8):
            yield Sample(cls(to), (x,))
    powers = 2.0 ** np.array([7, 8, 15, 16, 31, 32, 33, 39, 62, 63, 64, 100])
    whole = np.concatenate([powers, powers * (1 - 2.0**-24), [255.5, 300, 65537, 2**31 + 256]])
    edges = np.concatenate([[0, 0.99, np.nan, np.inf], whole]).astype(np.float32)
    for to in (d for d in DType if d.is_int):
        yield Sample(cls(to), (np.concatenate([edges, -edges]),))
    narrow = [d for d in DType if d.storage not in ("plain", "half")]
    numbers = np.array([0, 1, -2.5, 3, 0.4, 9, 1e-3, 500, 1e5, -1e6, np.inf, -np.inf, np.nan])
    for dtype in narrow:
        x = numbers.astype(np.float32) if dtype.is_float else np.arange(-9, 20, dtype=np.int32)
        x = np.abs(x) if dtype is DType.FLOAT8E8M0 else x
        yield Sample(cls(dtype), (x,))
        yield Sample(cls(DType.FLOAT32), (cls(dtype).reference(x)[0],))
    for dtype in FLOAT8:
        yield Sample(cls(dtype, False), (numbers.astype(np.float32),))
        yield Sample(cls(dtype), (np.arange(-300, 300, 41, dtype=np.int32),))
    for mode in ROUND_MODES:
        x = np.abs(numbers).astype(np.float32)
        yield Sample(cls(DType.FLOAT8E8M0, True, mode), (x,))
        yield Sample(cls(DType.FLOAT8E8M0, False, mode), (x,))


@samples_of(BitCast)
def bit_cast_samples(cls: type[BitCast]) -> Iterator[Sample]:
    x = np.array([[1.5, -2, 0]], np.float32)
    yield Sample(cls(DType.INT32), (x,))
    yield Sample(cls(DType.FLOAT16), (np.arange(5, dtype=np.uint16),))


@error_samples_of(BitCast)
def bit_cast_errors(cls: type[BitCast]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(DType.INT64), (np.zeros(2, np.float32),)), ShapeError
