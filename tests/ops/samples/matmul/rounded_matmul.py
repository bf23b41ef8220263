"""Samples of the op of `clrt/ops/matmul/rounded_matmul.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import Array, ElementwiseInstruction
from clrt.ops.matmul.rounded_matmul import MAX_DEPTH, RoundedMatMul
from clrt.ops.pointwise.table import Add, Relu
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(RoundedMatMul)
def rounded_matmul_samples(cls: type[RoundedMatMul]) -> Iterator[Sample]:
    rng = np.random.default_rng(93)

    def weight(k: int, n: int, dtype: type) -> tuple[Array, Array, Array]:
        limits = np.iinfo(dtype)
        b, zeros = (
            np.asarray(rng.integers(limits.min, limits.max + 1, shape), dtype)
            for shape in ((k, n), (n,))
        )
        return b, np.asarray(rng.uniform(0.01, 0.1, n), np.float32), zeros

    shapes: list[tuple[tuple[int, ...], int]] = [
        ((1, 5), 1),
        ((9, 33), 32),
        ((15, 64), 40),
        ((2, 3, 7), 33),
        ((4,), 3),
        ((66, 19), 9),
    ]
    for index, (shape, n) in enumerate(shapes):
        b, scales, zeros = weight(shape[-1], n, (np.int8, np.uint8)[index % 2])
        a = rng.uniform(-9, 9, shape).astype(np.float32)
        low = (-128, 0, -255, -37)[index % 4]
        op = cls(0, 0.05, low, low + 255)
        yield Sample(op, (a, b, scales, zeros))
        yield Sample(replace(op, trans_b=1), (a, b.T.copy(), scales, zeros))
    a.flat[:4] = [np.inf, -np.inf, 1e30, np.nan]
    yield Sample(cls(0, 0.05, -8, 7), (a, b, scales, zeros))
    steps = (
        ElementwiseInstruction(Add(), (0, 1)),
        ElementwiseInstruction(Relu(), (3,)),
        ElementwiseInstruction(Add(), (4, 2)),
    )
    extras = rng.standard_normal(9), rng.standard_normal((66, 9))
    fused = replace(op, steps=steps)
    yield Sample(fused, (a, b, scales, zeros, *(e.astype(np.float32) for e in extras)))
    yield Sample(op, (a[:0], b, scales, zeros))


@error_samples_of(RoundedMatMul)
def rounded_matmul_errors(cls: type[RoundedMatMul]) -> Iterator[tuple[Sample, type[Exception]]]:
    a, b = np.zeros((2, 5), np.float32), np.zeros((5, 3), np.int8)
    scales, zeros = np.ones(3, np.float32), np.zeros(3, np.int8)
    yield Sample(cls(), (a[:, :4], b, scales, zeros)), ShapeError
    yield Sample(cls(), (a.astype(np.float16), b, scales, zeros)), ShapeError
    yield Sample(cls(), (a, b.astype(np.int16), scales, zeros)), ShapeError
    yield Sample(cls(), (a, b, scales[:2], zeros)), ShapeError
    yield Sample(cls(), (a, b, scales, zeros.astype(np.uint8))), ShapeError
    yield Sample(cls(low=-200), (a, b, scales, zeros)), ShapeError
    deep = np.zeros((MAX_DEPTH + 1, 3), np.int8)
    yield Sample(cls(), (np.zeros((1, len(deep)), np.float32), deep, scales, zeros)), ShapeError
