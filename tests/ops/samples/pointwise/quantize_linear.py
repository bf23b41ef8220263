"""Samples of the ops of `clrt/ops/pointwise/quantize_linear.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ops.pointwise.quantize_linear import QUANTIZED, DequantizeLinear, QuantizeLinear
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(QuantizeLinear)
def quantize_linear_samples(cls: type[QuantizeLinear]) -> Iterator[Sample]:
    rng = np.random.default_rng(61)
    x = np.asarray(rng.uniform(-9, 9, (2, 6, 5)), np.float32)
    x.flat[:7] = [0.25, -0.75, 1e9, -np.inf, 0, 0.125, np.inf]
    for to in (np.uint8, np.int8, np.uint16, np.int16):
        yield Sample(cls(), (x, np.array(0.5, np.float32), np.asarray(3, to)))
    scale = np.asarray(rng.uniform(0.01, 0.2, 6), np.float32)
    yield Sample(cls(), (x, scale, np.arange(6, dtype=np.uint8) * 20))
    yield Sample(cls(-1), (x, scale[:5], np.arange(5, dtype=np.int8)))
    blocks = np.asarray(rng.uniform(0.01, 0.2, (2, 2, 5)), np.float32)
    yield Sample(cls(1, 4), (x, blocks, np.asarray(rng.integers(0, 99, (2, 2, 5)), np.uint8)))
    yield Sample(cls(), (x, np.full(1, 0.1, np.float32)))
    yield Sample(cls(), (np.zeros((0, 3), np.float32), np.array(1, np.float32)))
    yield Sample(
        cls(),
        (np.arange(-9, 9, dtype=np.int32), np.array(0.3, np.float32), np.array(1, np.int8)),
    )
    half = np.clip(x, -6e4, 6e4).astype(np.float16)
    yield Sample(cls(), (half, np.array(0.07, np.float16), np.array(128, np.uint8)))
    yield Sample(
        cls(precision=DType.FLOAT32),
        (half, np.array(0.07, np.float16), np.array(128, np.uint8)),
    )
    wide = x.astype(DType.BFLOAT16.numpy)
    yield Sample(cls(), (wide, np.asarray(0.3, DType.BFLOAT16.numpy), np.array(128, np.uint8)))
    for to_small in QUANTIZED[4:]:
        for saturate in (True, False):
            op = cls(saturate=saturate, output_dtype=to_small)
            yield Sample(op, (x[x < 1e8], np.array(0.3, np.float32)))


@error_samples_of(QuantizeLinear)
def quantize_linear_errors(cls: type[QuantizeLinear]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 6), np.float32)
    yield Sample(cls(), (x, np.ones(5, np.float32))), ShapeError
    yield Sample(cls(3), (x, np.ones(6, np.float32))), ShapeError
    yield Sample(cls(1, 4), (x, np.ones((2, 3), np.float32))), ShapeError
    yield Sample(cls(), (x, np.array(1, np.float32), np.zeros((), np.int64))), ShapeError


@samples_of(DequantizeLinear)
def dequantize_linear_samples(cls: type[DequantizeLinear]) -> Iterator[Sample]:
    rng = np.random.default_rng(67)
    scales = np.asarray(rng.uniform(0.01, 0.2, (2, 6, 5)), np.float32)
    for dtype in (np.uint8, np.int8, np.uint16, np.int16, np.int32):
        x = np.asarray(rng.integers(0, 99, (2, 6, 5)), dtype)
        yield Sample(cls(), (x, np.array(0.5, np.float32), np.asarray(3, dtype)))
        yield Sample(cls(), (x, scales[0, :, 0], np.arange(6).astype(dtype)))
    x = np.asarray(rng.integers(-99, 99, (2, 6, 5)), np.int8)
    yield Sample(cls(-1), (x, scales[0, 0], None))
    yield Sample(cls(0), (x, scales[:, 0, 0].astype(np.float16)))
    yield Sample(cls(1, 4), (x, scales[:, :2], x[:, :2]))
    yield Sample(cls(2, 2, DType.FLOAT16), (x, scales[:, :, :3]))
    yield Sample(cls(), (np.zeros((0, 3), np.int8), np.array(1, np.float32)))
    for small in QUANTIZED[4:]:
        codes = np.asarray(rng.integers(0, 3, (3, 7)), np.float32).astype(small.numpy)
        yield Sample(cls(), (codes, np.array(0.3, np.float32)))


@error_samples_of(DequantizeLinear)
def dequantize_linear_errors(
    cls: type[DequantizeLinear],
) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 6), np.int8)
    yield Sample(cls(), (x, np.ones(5, np.float32))), ShapeError
    yield Sample(cls(), (x, np.array(1, np.float32), np.array(0, np.uint8))), ShapeError
    yield Sample(cls(), (x.astype(np.float32), np.array(1, np.float32))), ShapeError
