"""Samples of the ops of `clrt/ops/matmul/matmul_nbits.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import ElementwiseInstruction
from clrt.ops.matmul.matmul_nbits import MatMulNBits
from clrt.ops.pointwise.table import Add, Mul
from clrt.util.math import ceil_div
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(MatMulNBits)
def matmul_n_bits_samples(cls: type[MatMulNBits]) -> Iterator[Sample]:
    rng = np.random.default_rng(79)
    for bits, k, n, lead in (
        (4, 16, 1, (1,)),
        (4, 64, 33, (5,)),
        (8, 40, 70, (2, 3)),
        (2, 37, 8, (1,)),
        (4, 41, 97, (3, 4)),
        (8, 32, 16, (9,)),
        (8, 140, 9, (13,)),
        (4, 140, 5, (7,)),
    ):
        op = cls(k, n, bits, 16)
        weights = np.asarray(rng.integers(0, 256, (n, op.blocks, op.lines // op.blocks)), np.uint8)
        packed = np.asarray(rng.integers(0, 256, (n, ceil_div(op.blocks * bits, 8))), np.uint8)
        for dtype in (np.float32, np.float16):
            a = np.asarray(rng.uniform(-1, 1, (*lead, k)), dtype)
            scales = np.asarray(rng.uniform(0.01, 0.1, (n, op.blocks)), dtype)
            zeros = np.asarray(rng.uniform(0, 9, (n, op.blocks)), dtype)
            bias = np.asarray(rng.uniform(-1, 1, n), dtype)
            yield Sample(op, (a, weights, scales))
            yield Sample(op, (a, weights, scales, packed, None, bias))
            yield Sample(op, (a, weights, scales, zeros, None, bias))
            residual = np.asarray(rng.uniform(-1, 1, (*lead, n)), dtype)
            steps = (ElementwiseInstruction(Mul(), (0, 1)), ElementwiseInstruction(Add(), (3, 2)))
            if bits != 4:
                continue
            fused = replace(op, steps=steps)
            yield Sample(fused, (a, weights, scales, packed, None, bias, bias, residual))
            yield Sample(fused, (a, weights, scales, None, None, None, bias, residual))
    yield from _rounded(cls, rng)


def _rounded(cls: type[MatMulNBits], rng: np.random.Generator) -> Iterator[Sample]:
    """With rows of A in 8 bits."""
    for bits, k, n, block in ((4, 64, 33, 32), (8, 70, 32, 32), (4, 130, 5, 64)):
        op = cls(k, n, bits, block, a_bits=8)
        weights = np.asarray(rng.integers(0, 256, (n, op.blocks, op.lines // op.blocks)), np.uint8)
        packed = np.asarray(rng.integers(0, 256, (n, ceil_div(op.blocks * bits, 8))), np.uint8)
        scales = rng.uniform(0.01, 0.1, (n, op.blocks)).astype(np.float32)
        for rows in (1, 6):
            a = rng.uniform(-1, 1, (rows, k)).astype(np.float32)
            yield Sample(op, (a, weights, scales))
            yield Sample(op, (a, weights, scales, packed, None, scales[:, 0]))


@error_samples_of(MatMulNBits)
def matmul_n_bits_errors(cls: type[MatMulNBits]) -> Iterator[tuple[Sample, type[Exception]]]:
    weights, scales = np.zeros((3, 2, 8), np.uint8), np.ones((3, 2), np.float32)
    a = np.zeros((2, 32), np.float32)
    yield Sample(cls(32, 4, 4, 16), (a, weights, scales)), ShapeError
    yield Sample(cls(32, 3, 4, 16), (a[:, :31], weights, scales)), ShapeError
    yield Sample(cls(32, 3, 4, 16), (a, weights.astype(np.float32), scales)), ShapeError
    yield Sample(cls(32, 3, 3, 16), (a, weights, scales)), ShapeError
    yield Sample(cls(32, 3, 4, 0), (a, weights, scales)), ShapeError
