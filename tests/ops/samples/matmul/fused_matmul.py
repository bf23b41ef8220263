"""Samples of the ops of `clrt/ops/matmul/fused_matmul.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.op import ElementwiseInstruction
from clrt.ops.base import Op
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.pointwise.fused import Literal
from tests.ops.samples.matmul.matmul import SAMPLE_SHAPES
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(FusedMatMul)
def fused_matmul_samples(cls: type[FusedMatMul]) -> Iterator[Sample]:
    from clrt.ops.pointwise.table import Add, Gelu, Mul, Relu, Where

    rng = np.random.default_rng(9)

    def make(op: Op, *shapes: tuple[int, ...]) -> Sample:
        return Sample(op, tuple(rng.standard_normal(s).astype(np.float32) for s in shapes))

    bias = (ElementwiseInstruction(Add(), (0, 1)),)
    gelu = (*bias, ElementwiseInstruction(Gelu(), (2,)))
    residual = (ElementwiseInstruction(Add(), (0, 1)), ElementwiseInstruction(Add(), (3, 2)))
    scaled = (
        ElementwiseInstruction(Literal(0.125), ()),
        ElementwiseInstruction(Mul(), (0, 1)),
        ElementwiseInstruction(Relu(), (2,)),
    )
    for a, b in SAMPLE_SHAPES:
        yield make(cls(steps=scaled), a, b)
    for n in (1, 7, 16, 24, 33):
        yield make(cls(steps=gelu), (5, 11), (11, n), (n,))
        yield make(cls(steps=residual), (2, 5, 11), (11, n), (n,), (2, 5, n))
    extras: list[tuple[int, ...]] = [(), (1,), (6, 1), (3, 6, 1), (2, 1, 1, 1), (2, 3, 6, 9)]
    for shape in [*extras, (2, 1, 6, 9), (1, 9)]:
        yield make(cls(steps=bias), (2, 3, 6, 5), (2, 3, 5, 9), shape)
        yield make(cls(steps=bias), (2, 3, 6, 5), (5, 9), shape)
    yield make(cls(steps=bias), (3, 5), (5,), (3,))
    yield make(cls(steps=bias), (5,), (5, 3), (3,))
    for trans in [(1, 0), (0, 1), (1, 1)]:
        for batch in [(), (2,), (2, 3)]:
            a, b = ((5, 4) if trans[0] else (4, 5)), ((9, 5) if trans[1] else (5, 9))
            yield make(cls(*trans, bias), (*batch, *a), (*batch, *b), (9,))
            yield make(cls(*trans), (*batch, *a), b)
    where = (ElementwiseInstruction(Where(), (1, 0, 2)),)
    mask = rng.integers(0, 2, (4, 9)).astype(bool)
    plain = make(cls(steps=where), (4, 5), (5, 9), ())
    yield Sample(plain.op, (*plain.inputs[:2], mask, plain.inputs[2]))
    for trans_b in (0, 1):
        double = make(cls(0, trans_b, gelu), (5, 11), (26, 11) if trans_b else (11, 26), (26,))
        yield Sample(double.op, tuple(a.astype(np.float64) for a in double.inputs if a is not None))
    half = tuple(rng.standard_normal(s).astype(np.float16) for s in [(4, 5), (5, 9), (9,)])
    yield Sample(cls(steps=gelu), half)
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        for m, n in ((1, 24), (5, 25), (13, 50)):
            for trans_b in (0, 1):
                plain = make(cls(0, trans_b, bias), (m, 11), (n, 11) if trans_b else (11, n), (n,))
                x, w, c = plain.inputs
                assert w is not None
                yield Sample(plain.op, (x, w.astype(dtype.numpy), c))


@error_samples_of(FusedMatMul)
def fused_matmul_errors(cls: type[FusedMatMul]) -> Iterator[tuple[Sample, type[Exception]]]:
    from clrt.ops.pointwise.table import Add

    bias = cls(steps=(ElementwiseInstruction(Add(), (0, 1)),))
    a, b = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
    for shape in [(3,), (5, 2, 4), (1, 2, 4)]:
        yield Sample(bias, (a, b, np.zeros(shape, np.float32))), ShapeError
