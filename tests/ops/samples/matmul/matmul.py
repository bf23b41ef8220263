"""Samples of the ops of `clrt/ops/matmul/matmul.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ops.matmul.matmul import MatMul
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(MatMul)
def matmul_samples(cls: type[MatMul]) -> Iterator[Sample]:
    rng = np.random.default_rng(5)
    for a, b in SAMPLE_SHAPES:
        yield Sample(cls(), tuple(rng.standard_normal(s).astype(np.float32) for s in (a, b)))
    for dtype in (DType.INT32, DType.UINT64, DType.INT64, DType.FLOAT16):
        for shapes in [((13, 5), (5, 27)), ((2, 1, 3, 4), (3, 4, 2)), ((4,), (4,))]:
            arrays = (rng.integers(0, 9, s).astype(dtype.numpy) for s in shapes)
            yield Sample(cls(), tuple(arrays))


@error_samples_of(MatMul)
def matmul_errors(cls: type[MatMul]) -> Iterator[tuple[Sample, type[Exception]]]:
    for a, b in [((2, 3), (4, 2)), ((), (3,)), ((2, 3, 4), (3, 4, 5)), ((4,), (3, 4))]:
        arrays = (np.zeros(a, np.float32), np.zeros(b, np.float32))
        yield Sample(cls(), arrays), ShapeError
    mixed = (np.zeros((2, 2), np.float32), np.zeros((2, 2), np.int32))
    yield Sample(cls(), mixed), ShapeError


# Around the tiles (4 x 24 and 64 x 64, 16 deep), stripes of them, vectors, every way to broadcast,
# empty axes.
SAMPLE_SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    *(((m, 17), (17, n)) for m in (1, 3, 4, 5) for n in (1, 7, 8, 23, 24, 25)),
    ((63, 16), (16, 64)),
    ((65, 33), (33, 65)),
    ((29, 5), (5, 18)),
    ((5,), (5,)),
    ((5,), (5, 7)),
    ((7, 5), (5,)),
    ((5,), (3, 5, 7)),
    ((2, 3, 7, 5), (5,)),
    ((2, 7, 5), (5, 9)),
    ((2, 7, 5), (2, 5, 9)),
    ((7, 5), (2, 5, 9)),
    ((1, 7, 5), (3, 5, 9)),
    ((2, 3, 7, 5), (2, 3, 5, 9)),
    ((2, 1, 7, 5), (3, 5, 9)),
    ((3, 7, 5), (2, 1, 5, 9)),
    ((2, 3, 1, 5), (2, 3, 5, 9)),
    ((2, 1, 3, 1, 4, 5), (1, 2, 1, 2, 5, 6)),
    ((3, 0), (0, 5)),
    ((0, 4), (4, 5)),
    ((3, 4), (4, 0)),
    ((2, 0, 4), (2, 4, 3)),
)
