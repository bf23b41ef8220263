"""Samples of the ops of `clrt/ops/conv/conv_quantized.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ops.conv.conv_quantized import ChannelsLastQuantizedConv
from tests.ops.samples.registry import Sample, error_samples_of, samples_of

_SIGNED, _UNSIGNED = np.dtype(np.int8), np.dtype(np.uint8)


def _levels(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max + 1, shape).astype(dtype)


@samples_of(ChannelsLastQuantizedConv)
def quantized_conv_samples(cls: type[ChannelsLastQuantizedConv]) -> Iterator[Sample]:
    rng = np.random.default_rng(23)
    around = (1, 1, 1, 1)
    unsigned = {"x_zero": 121, "y_zero": 7}
    for fields, x, w in [
        ({}, (2, 9, 3), (4, 3, 1)),
        ({}, (2, 5, 4, 24), (40, 24, 1, 1)),
        ({"strides": (2, 2)}, (2, 5, 4, 6), (70, 6, 1, 1)),
        ({"pads": around}, (2, 5, 6, 5), (9, 5, 3, 3)),
        ({"pads": around}, (1, 12, 11, 8), (33, 8, 3, 3)),
        ({"pads": (3, 3, 3, 3), "strides": (2, 2)}, (1, 11, 13, 3), (32, 3, 7, 7)),
        (
            {"pads": around, "strides": (2, 1), "dilations": (1, 2)},
            (1, 7, 8, 3),
            (24, 3, 3, 3),
        ),
        ({"pads": around, "group": 2}, (2, 5, 6, 14), (8, 7, 3, 3)),
        ({"pads": around, "group": 12}, (1, 4, 5, 36), (48, 3, 3, 3)),
        ({"pads": around, "group": 2}, (1, 4, 5, 6), (80, 3, 2, 2)),
        ({"pads": (2, 2)}, (1, 11, 1), (30, 1, 5)),
        ({"pads": (9, 9)}, (1, 3, 4), (5, 4, 2)),
        ({"pads": (1, 0, 1, 1, 2, 0)}, (1, 3, 4, 5, 2), (6, 2, 2, 3, 3)),
        ({"auto_pad": "SAME_UPPER", "strides": (2, 2)}, (1, 6, 7, 2), (3, 2, 3, 3)),
        ({"pads": around, "group": 24}, (2, 5, 7, 24), (24, 1, 3, 3)),
        ({"pads": around, "group": 19, "strides": (2, 2)}, (1, 6, 9, 19), (19, 1, 3, 3)),
        ({"pads": (2, 2), "dilations": (2,), "group": 5}, (2, 3, 5), (5, 1, 3)),
        ({"group": 8, "pads": (1, 1, 0, 0, 1, 2)}, (1, 3, 3, 9, 8), (8, 1, 2, 2, 3)),
        ({"group": 3}, (0, 5, 5, 3), (3, 1, 3, 3)),
        ({}, (0, 5, 5, 3), (3, 3, 3, 3)),
    ]:
        for x_type, w_type in [(_UNSIGNED, _SIGNED), (_SIGNED, _UNSIGNED)]:
            op = cls(**fields, **unsigned)  # type: ignore[arg-type]
            if x_type is _SIGNED:
                op = replace(op, x_zero=-3, y_zero=-20, low=-90, high=100, to=DType.INT8)
            count, terms = w[0], int(np.prod(w[1:]))
            zeros = rng.integers(*((-2, 3) if w_type is _SIGNED else (126, 131)), count)
            bias = rng.integers(-(1 << 16), 1 << 16, count)
            factors = rng.uniform(0.2, 1.0, count) / (64 * np.sqrt(terms))
            yield Sample(
                op,
                (
                    _levels(rng, x, x_type),
                    _levels(rng, w, w_type),
                    zeros.astype(np.int32),
                    bias.astype(np.int32),
                    factors.astype(np.float32),
                ),
            )
    numbers = np.array([np.nan, np.inf, -np.inf, -0.25, 1e-40], np.float32)
    x, w = _levels(rng, (1, 4, 5, 5), _SIGNED), _levels(rng, (5, 5, 2, 2), _SIGNED)
    for group, weights in [(1, w), (5, w[:, :1])]:
        op = cls(x_zero=-128, y_zero=3, low=-128, high=127, to=DType.INT8, group=group)
        zeros, bias = np.full(5, -128, np.int32), np.full(5, (1 << 31) - 9, np.int32)  # sums wrap
        yield Sample(op, (x, weights, zeros, bias, numbers))


@error_samples_of(ChannelsLastQuantizedConv)
def quantized_conv_errors(
    cls: type[ChannelsLastQuantizedConv],
) -> Iterator[tuple[Sample, type[Exception]]]:
    x, w = np.zeros((1, 5, 5, 4), np.uint8), np.zeros((2, 4, 3, 3), np.int8)
    ints, floats = np.zeros(2, np.int32), np.zeros(2, np.float32)
    yield Sample(cls(), (x.astype(np.int16), w, ints, ints, floats)), ShapeError
    yield Sample(cls(to=DType.INT16), (x, w, ints, ints, floats)), ShapeError
    yield Sample(cls(), (x, w[:, :3], ints, ints, floats)), ShapeError
    yield Sample(cls(), (x, w, ints[:1], ints, floats)), ShapeError
    yield Sample(cls(), (x, w, ints, ints, floats.astype(np.float64))), ShapeError
