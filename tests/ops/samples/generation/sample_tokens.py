"""Samples of the ops of `clrt/ops/generation/sample_tokens.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.generation.sample_tokens import SampleTokens
from tests.ops.samples.registry import Sample, error_samples_of, samples_of

_NAMES = (
    "temperature", "top_p", "min_p", "typical_p", "repetition", "presence", "frequency", "prompt",
)  # fmt: skip
_Inputs = tuple[Array | None, ...]


def request(logits: Array, seed: int = 0, top_k: int = 0, **settings: Any) -> _Inputs:
    """The inputs for some logits: one number of a setting for all rows, or one for each."""
    rows, n = logits.shape
    rng = np.random.default_rng(seed)
    given = {"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repetition": 1.0, **settings}
    table = np.zeros((rows, 8), np.float32)
    for name, value in given.items():
        table[:, _NAMES.index(name)] = value
    history = rng.integers(-1, min(n, 9) + 2, (rows, 12)).astype(np.int32)
    limits = np.zeros((rows, 4), np.int32)
    limits[:] = top_k, 10, seed, 7
    draw = rng.integers(0, 1000, rows).astype(np.int32)
    return logits, table, limits, history, draw


def _logits(rng: np.random.Generator, *shape: int) -> Array:
    return (3 * rng.standard_normal(shape)).astype(np.float32)


def _mask(rng: np.random.Generator, rows: int, n: int) -> Array:
    bits = rng.integers(0, 2, (rows, -(-n // 32) * 32)).astype(np.uint8)
    bits[:, 0] = 1
    return np.packbits(bits, axis=1, bitorder="little").view("<u4")


@samples_of(SampleTokens)
def sample_tokens_samples(cls: type[SampleTokens]) -> Iterator[Sample]:
    rng = np.random.default_rng(20)
    for rows, n in ((1, 1), (2, 7), (3, 65), (1, 150), (0, 5)):
        dtypes = (np.float32, np.float16, DType.BFLOAT16.numpy)
        for dtype in dtypes if n == 65 else dtypes[:1]:
            logits = _logits(rng, rows, n).astype(dtype)
            yield Sample(cls(), request(logits, 1, temperature=0))
            yield Sample(cls(), request(logits, 2, temperature=0.7))
    logits = _logits(rng, 2, 100)
    for seed, settings in enumerate(_SETTINGS):
        yield Sample(cls(), request(logits, seed, **settings))
    rough = np.round(logits)  # many of one score
    for seed, settings in enumerate(_SETTINGS[8:15]):
        yield Sample(cls(), request(rough, 100 + seed, **settings))
    yield Sample(cls(), request(np.zeros((2, 50), np.float32), top_p=0.5, top_k=9))
    for n in (2100,):
        yield Sample(cls(), request(_logits(rng, 1, n), 3, top_k=40, top_p=0.9, min_p=0.01))
    yield from _more_inputs(cls, rng)


# Penalties, and what is kept: each alone, then together.
_SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0, "repetition": 1.7},
    {"temperature": 0, "presence": 2.0, "frequency": 0.5},
    {"temperature": 1.3, "repetition": 0.6, "presence": -1.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 99},
    {"top_k": 1000, "temperature": 4.0},
    {"top_p": 0.0},
    {"top_p": 0.3},
    {"top_p": 0.95, "temperature": 2.0},
    {"min_p": 0.2},
    {"min_p": 2.0},
    {"typical_p": 0.4},
    {"typical_p": 0.9, "temperature": 3.0},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.8, "temperature": 1.5},
    {"temperature": [0, 0.5], "top_p": [0.5, 0.8], "typical_p": [0, 0.7]},
    {"temperature": 1e-3},
    {"temperature": 1e-30, "top_k": 3},
    {"temperature": 0.01, "top_k": 90},
    {"temperature": 1e4, "top_p": 0.5},
    {"top_p": np.nan, "min_p": np.nan, "typical_p": np.nan, "repetition": np.nan},
    {"temperature": np.nan, "repetition": -1},
]  # fmt: skip


def _more_inputs(cls: type[SampleTokens], rng: np.random.Generator) -> Iterator[Sample]:
    """Mask and bias, odd logits, histories without an element."""
    logits = _logits(rng, 3, 70)
    odd = logits.copy()
    odd[:, 3::4] = np.nan
    odd[:, 4::8] = -np.inf
    odd[1, 9] = np.inf
    ids = rng.integers(-2, 73, (3, 6)).astype(np.int32)
    ids[:, 1] = ids[:, 0]
    values = _logits(rng, 3, 6)
    values[0] = -np.inf, np.inf, np.nan, 1, 2, 3
    for x in (logits, odd):
        mask = _mask(rng, 3, 70)
        for settings in ({"temperature": 0}, {"top_p": 0.8, "frequency": 0.3}, {"typical_p": 0.6}):
            inputs = request(x, 5, **settings)
            yield Sample(cls(), inputs)
            yield Sample(cls(), (*inputs, mask))
            yield Sample(cls(), (*inputs, None, ids, values))
            yield Sample(cls(), (*inputs, mask, ids, values))
    for settings in ({"presence": 2.0}, {"frequency": 0.7, "repetition": 1.4}):
        for temperature in (0, 0.8):
            yield Sample(cls(), request(logits, 7, temperature=temperature, prompt=6, **settings))
    few = request(logits, 6, repetition=2.0)
    assert few[3] is not None
    for width, length in ((0, 10), (12, -3), (12, 99)):
        inputs = (*few[:2], np.array([[0, length, 1, -1]] * 3, np.int32), few[3][:, :width], few[4])
        yield Sample(cls(), inputs)
        yield Sample(cls(), (*inputs, None, ids[:, :0], values[:, :0]))


@error_samples_of(SampleTokens)
def sample_tokens_errors(cls: type[SampleTokens]) -> Iterator[tuple[Sample, type[Exception]]]:
    inputs = request(np.zeros((2, 40), np.float32))
    mask, ids = np.zeros((2, 2), np.uint32), np.zeros((2, 3), np.int32)
    values = np.zeros((2, 3), np.float32)
    wrong = [
        (0, np.zeros((2, 40), np.int32)), (0, np.zeros(40, np.float32)),
        (0, np.zeros((2, 40))), (1, np.zeros((2, 7), np.float32)),
        (1, np.zeros((3, 8), np.float32)),
        (2, np.zeros((2, 4), np.int64)), (3, np.zeros((1, 5), np.int32)),
        (4, np.zeros((2, 1), np.int32)), (5, mask[:, :1]), (5, mask.astype(np.int32)), (6, None),
        (7, values[:, :2]),
    ]  # fmt: skip
    for index, array in wrong:
        given = [*inputs, mask, ids, values]
        given[index] = array
        yield Sample(cls(), tuple(given)), ShapeError
