"""Samples of the ops that read weights in blocks of GGUF's types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from clrt.errors import ShapeError
from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.ir.op import Array, ElementwiseInstruction
from clrt.ops.matmul.quantized_gather import QuantizedGather
from clrt.ops.matmul.quantized_matmul import QuantizedMatMul
from clrt.ops.pointwise.table import Add, Relu
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


def quantised(rng: np.random.Generator, type_: str, n: int, k: int) -> Array:
    """Rows of blocks: bytes at random but for scales, which are of a usual size."""
    found = BLOCK_TYPES_BY_NAME[type_]
    raw = rng.integers(0, 256, (n, found.row_bytes(k)), dtype=np.uint8)
    blocks = raw.reshape(-1, found.nbytes)
    assert found.coding is not None
    for at in found.coding.factors or (0,):
        scales = rng.uniform(0.01, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return raw


@samples_of(QuantizedMatMul)
def quantized_matmul_samples(cls: type[QuantizedMatMul]) -> Iterator[Sample]:
    rng = np.random.default_rng(91)
    for type_, n, k in (
        ("Q4_0", 33, 64),
        ("Q8_0", 64, 96),
        ("Q4_1", 5, 32),
        ("Q4_K", 40, 256),
        ("Q6_K", 32, 256),
    ):
        raw = quantised(rng, type_, n, k)
        op = cls(type_, k, n)
        for rows in ((1,), (6,), (2, 3)) if k < 256 else ((1,), (2, 3)):
            a = rng.standard_normal((*rows, k)).astype(np.float32)
            yield Sample(op, (a, raw))
            yield Sample(replace(op, a_bits=8), (a, raw))
    for type_, n, k in (("Q4_0", 33, 64), ("Q6_K", 7, 256), ("Q2_K", 7, 256)):
        raw = quantised(rng, type_, n, k)
        yield Sample(cls(type_, k, n), (rng.standard_normal((9, k), np.float32), raw))
    op, raw = cls("Q8_0", 32, 7, 8), quantised(rng, "Q8_0", 7, 32)
    a = rng.standard_normal((37, 32)).astype(np.float32)
    a[3] = 0
    yield Sample(op, (a, raw))
    yield Sample(replace(op, a_bits=0), (a[0], raw))
    steps = (
        ElementwiseInstruction(Add(), (0, 1)),
        ElementwiseInstruction(Relu(), (3,)),
        ElementwiseInstruction(Add(), (4, 2)),
    )
    bias, more = rng.standard_normal(7).astype(np.float32), rng.standard_normal((37, 7))
    for bits in (0, 8):
        fused = replace(op, a_bits=bits, steps=steps)
        yield Sample(fused, (a, raw, bias, more.astype(np.float32)))
    yield Sample(op, (a[:0], raw))


@error_samples_of(QuantizedMatMul)
def quantized_matmul_errors(
    cls: type[QuantizedMatMul],
) -> Iterator[tuple[Sample, type[Exception]]]:
    a, raw = np.zeros((2, 32), np.float32), np.zeros((7, 34), np.uint8)
    yield Sample(cls("Q9", 32, 7), (a, raw)), ShapeError
    yield Sample(cls("F32", 32, 7), (a, raw)), ShapeError
    yield Sample(cls("Q8_0", 33, 7), (a, raw)), ShapeError
    yield Sample(cls("Q8_0", 32, 8), (a, raw)), ShapeError
    yield Sample(cls("Q8_0", 32, 7, 4), (a, raw)), ShapeError
    yield Sample(cls("Q8_0", 32, 7), (a[:, :8], raw)), ShapeError
    yield Sample(cls("Q8_0", 32, 7), (a, raw.astype(np.int8))), ShapeError


@samples_of(QuantizedGather)
def quantized_gather_samples(cls: type[QuantizedGather]) -> Iterator[Sample]:
    rng = np.random.default_rng(92)
    for type_, k in (("Q4_0", 64), ("Q8_0", 32), ("Q4_K", 256), ("Q6_K", 256)):
        raw = quantised(rng, type_, 45, k)
        yield Sample(cls(type_, k, 45), (np.array([3, 44, -1, 0, 3], np.int32), raw))
    yield Sample(cls(type_, k, 45), (np.array([[7], [33]]), raw))
    for type_, k in (("Q4_0", 64), ("Q5_0", 64), ("Q2_K", 256), ("Q6_K", 512), ("IQ2_XS", 256)):
        raw = quantised(rng, type_, 45, k)
        op = cls(type_, k, 45, exact=1)
        yield Sample(op, (np.array([3, 44, -1, 0, 3], np.int32), raw))
    yield Sample(cls(type_, k, 45), (np.zeros(0, np.int32), raw))
