"""Samples of the op of `clrt/ops/recurrent/dynamic_quantize_lstm.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clrt.errors import ModelError, ShapeError
from clrt.ir.op import Array
from clrt.ops.recurrent.dynamic_quantize_lstm import DynamicQuantizeLSTM
from clrt.ops.recurrent.lstm import LSTM
from tests.ops.samples.recurrent.recurrent import sample_inputs
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


def quantized_inputs(
    op: DynamicQuantizeLSTM,
    sizes: tuple[int, int, int, int],
    optional: tuple[bool, ...],
    dtype: Any = np.int8,
    per_column: bool = False,
) -> tuple[Array | None, ...]:
    """Random inputs of T, B, I, H; `optional` says which of those from B to P are there."""
    rng = np.random.default_rng(11)
    x, w, r, *others = sample_inputs(LSTM, sizes, op, optional)
    limits = np.iinfo(dtype)
    parameters: list[Array] = []
    weights: list[Array] = []
    for like in (w, r):
        assert like is not None
        directions, wide, depth = like.shape
        shape = (directions, wide) if per_column else (directions,)
        levels = rng.integers(limits.min, limits.max, (directions, depth, wide), endpoint=True)
        weights.append(levels.astype(dtype))
        middle = rng.integers(100, 140) if dtype is np.uint8 else 0
        parameters.append(rng.uniform(0.002, 0.008, shape).astype(np.float32))
        parameters.append(np.full(shape, middle, dtype))
    return (x, *weights, *others, *parameters)


@samples_of(DynamicQuantizeLSTM)
def dynamic_quantize_lstm_samples(cls: type[DynamicQuantizeLSTM]) -> Iterator[Sample]:
    some, none = (True, True, True, False, True), (False,) * 5
    both = cls(direction="bidirectional")
    coupled = cls(direction="reverse", input_forget=1, clip=0.5)
    for op, sizes, optional, dtype, per_column in [
        (cls(), (1, 1, 9, 24), none, np.int8, False),
        (cls(), (4, 1, 6, 17), (True, False, True, True, False), np.uint8, True),
        (both, (2, 11, 3, 7), (True,) * 5, np.uint8, False),
        (both, (5, 3, 5, 8), (True,) * 5, np.int8, True),
        (coupled, (3, 2, 4, 5), some, np.uint8, False),
    ]:
        yield Sample(op, quantized_inputs(op, sizes, optional, dtype, per_column))


@error_samples_of(DynamicQuantizeLSTM)
def dynamic_quantize_lstm_errors(
    cls: type[DynamicQuantizeLSTM],
) -> Iterator[tuple[Sample, type[Exception]]]:
    good = quantized_inputs(cls(), (4, 3, 5, 7), (True,) * 5)
    x, w, *rest = good
    assert x is not None and w is not None
    yield Sample(cls(), (x, w.swapaxes(1, 2).copy(), *rest)), ShapeError
    yield Sample(cls(), (x, w.astype(np.float32), *rest)), ShapeError
    yield Sample(cls(), (x.astype(np.float16), w, *rest)), ShapeError
    yield Sample(cls(), (*good[:8], np.ones(4, np.float32), *good[9:])), ShapeError
    yield Sample(cls(), good[:11]), ModelError
