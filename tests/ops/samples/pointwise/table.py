"""Samples of the ops of `clrt/ops/pointwise/table.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.round_to_scale import RoundToScale
from clrt.ops.pointwise.table import (
    Acos,
    Acosh,
    Asin,
    Atanh,
    BitShift,
    Div,
    Gelu,
    Log,
    Mod,
    Pow,
    Reciprocal,
    Sqrt,
    Tan,
    Where,
)
from tests.ops.samples.registry import Sample, error_samples_of, samples_of

# Where operands are drawn from, if not from -4 to 4.
_ONE, _POSITIVE = (-1.0, 1.0), (0.01, 9.0)
_DOMAINS: dict[type[Pointwise], tuple[float, float]] = {
    Acos: _ONE,
    Acosh: (1.01, 9.0),
    Asin: _ONE,
    Atanh: (-0.9, 0.9),
    Log: _POSITIVE,
    Pow: (0.25, 4.0),
    Reciprocal: _POSITIVE,
    Sqrt: _POSITIVE,
    Tan: _ONE,
}
_INTEGERS = tuple(d for d in DType if d.is_int and d.storage == "plain")


@samples_of(Pointwise)
def pointwise_samples(cls: type[Pointwise]) -> Iterator[Sample]:
    """Flat operands per dtype, with tails around the vector width, and broadcast operands.

    All ops read broadcast operands by the same code: each op has another dtype in each form.
    """
    rng = np.random.default_rng(7)
    dtypes = sample_dtypes(cls)
    for size, dtype in product((0, 1, 7, 33), dtypes):
        yield Sample(cls(), tuple(draw(cls, rng, (size,), dtype) for _ in range(cls.arity)))
    forms: list[tuple[tuple[int, ...], ...]] = []
    if cls.arity == 2:
        forms = [((2, 3, 5), (5,)), ((4, 1, 5), (3, 1)), ((), (3, 4))]
    if cls.arity == 3:
        forms = [((2, 1, 5), (3, 1), (2, 3, 5))]
    for number, form in enumerate(forms, sum(cls.name.encode())):
        dtype = dtypes[number % len(dtypes)]
        yield Sample(cls(), tuple(draw(cls, rng, shape, dtype) for shape in form))
    extremes = _INTEGERS if cls in (Div, Mod) else (DType.INT64, DType.INT32)
    for dtype in extremes if cls.integers else ():
        yield Sample(cls(), tuple(np.meshgrid(*[_edges(dtype)] * cls.arity)))


@error_samples_of(Pointwise)
def pointwise_errors(cls: type[Pointwise]) -> Iterator[tuple[Sample, type[Exception]]]:
    for count in range(1, cls.arity + 2):
        if not cls().takes(count):
            yield Sample(cls(), (np.zeros(3, np.float32),) * count), ShapeError


def sample_dtypes(cls: type[Pointwise]) -> list[DType]:
    """The dtypes that samples are drawn in."""
    floats = [DType.FLOAT32] if cls.floats else []
    integers = [DType.INT64, DType.INT32] if cls.integers else []
    return floats + integers + ([DType.BOOL] if cls.booleans else [])


def draw(
    cls: type[Pointwise], rng: np.random.Generator, shape: tuple[int, ...], dtype: DType
) -> Array:
    """Random elements of the op's input domain."""
    if dtype is DType.BOOL:
        return np.asarray(rng.integers(0, 2, shape), bool)
    low, high = _DOMAINS.get(cls, (-4.0, 4.0))
    if dtype.is_int:
        return np.asarray(rng.integers(math.ceil(low), math.ceil(high), shape), dtype.numpy)
    return np.asarray(rng.uniform(low, high, shape), dtype.numpy)


def _edges(dtype: DType) -> Array:
    """Integers around 0 and at both ends of a dtype."""
    info = np.iinfo(dtype.value)
    low, high = int(info.min), int(info.max)
    numbers = {*range(max(low, -4), 5), *range(low, low + 5), *range(high - 4, high + 1)}
    return np.array(sorted(numbers), dtype.numpy)


@samples_of(Pow)
def pow_samples(cls: type[Pow]) -> Iterator[Sample]:
    yield from pointwise_samples(cls)
    for dtype in (np.int32, np.int64):
        x, y = np.meshgrid(np.arange(-9, 10, dtype=dtype), np.arange(-2, 9, dtype=dtype))
        yield Sample(cls(), (x, y))
        yield Sample(cls(), (np.abs(x), np.full(1, 0.75, np.float32)))
        yield Sample(cls(), (x.astype(np.float32), y))
    for integer in _INTEGERS:
        yield Sample(cls(), tuple(np.meshgrid(*[_edges(integer)] * 2)))
    yield Sample(cls(), (_edges(DType.INT8), np.full(1, 1000)))
    yield Sample(cls(), (_edges(DType.INT32), np.full(1, -0.5, np.float32)))


@samples_of(Mod)
def mod_samples(cls: type[Mod]) -> Iterator[Sample]:
    for sample in pointwise_samples(cls):
        is_float = sample.inputs[0] is not None and sample.inputs[0].dtype.kind == "f"
        yield Sample(cls(int(is_float)), sample.inputs)
        if not is_float:
            yield Sample(cls(1), sample.inputs)


@samples_of(BitShift)
def bit_shift_samples(cls: type[BitShift]) -> Iterator[Sample]:
    for dtype in (np.uint8, np.uint32):
        x, by = np.arange(9, dtype=dtype) * 7, np.arange(9, dtype=dtype) % 5
        yield Sample(cls("LEFT"), (x, by))
        yield Sample(cls("RIGHT"), (x, by))
    for wide in (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64, DType.INT64):
        width = 8 * wide.itemsize
        most = int(np.iinfo(wide.value).max)
        places = [0, 1, width - 1, width, width + 1, 63, 64, 65, 127, most]
        grid = tuple(np.meshgrid(_edges(wide), np.array(places, wide.numpy)))
        yield Sample(cls("LEFT"), grid)
        yield Sample(cls("RIGHT"), grid)


@samples_of(Where)
def where_samples(cls: type[Where]) -> Iterator[Sample]:
    rng = np.random.default_rng(3)
    for sample in pointwise_samples(cls):
        condition, *rest = sample.inputs
        assert condition is not None
        mask = np.asarray(rng.integers(0, 2, condition.shape), bool)
        yield Sample(cls(), (mask, *rest))


@samples_of(Gelu)
def gelu_samples(cls: type[Gelu]) -> Iterator[Sample]:
    for sample in pointwise_samples(cls):
        yield sample
        yield Sample(cls("tanh"), sample.inputs)


@samples_of(RoundToScale)
def round_to_scale_samples(cls: type[RoundToScale]) -> Iterator[Sample]:
    rng = np.random.default_rng(8)
    x = np.asarray(rng.uniform(-9, 9, (2, 6, 5)), np.float32)
    x.flat[:8] = [0.25, -0.75, 1e9, -np.inf, 0, 0.125, np.inf, np.nan]
    scale = np.array(0.5, np.float32)
    for low, high in ((-128, 127), (-3, 252), (-32768, 32767)):
        yield Sample(cls(), (x, scale, np.array(low, np.float32), np.array(high, np.float32)))
    scales = np.asarray(rng.uniform(0.01, 0.2, (6, 1)), np.float32)
    lows = np.arange(-6, 0, dtype=np.float32)[:, None] * 20
    yield Sample(cls(), (x, scales, lows, lows + 255))
    half = np.clip(x, -9, 9).astype(np.float16)
    yield Sample(cls(), (half, *(np.full(1, v, np.float16) for v in (0.5, -8, 7))))
