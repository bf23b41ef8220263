"""Samples of the ops of `clrt/ops/matmul/einsum.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.matmul.einsum import Einsum
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Einsum)
def einsum_samples(cls: type[Einsum]) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for equation, shape in [
        ("ij->ji", (3, 5)),
        ("...ii->...i", (2, 3, 3)),
        ("iijk->kij", (3, 3, 2, 4)),
        ("i...j->j...i", (2, 0, 3)),
        ("->", ()),
    ]:
        for dtype in (np.float32, np.int64):
            yield Sample(cls(equation), (rng.integers(-9, 9, shape).astype(dtype),))


@error_samples_of(Einsum)
def einsum_errors(cls: type[Einsum]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 3), np.float32)
    for equation in ("ijk->i", "ij,jk", "ij->ijj", "ij->ik", "i->j->k", "i1->i", "ii->i"):
        yield Sample(cls(equation), (x,)), ShapeError
    yield Sample(cls("ij,jk->ik"), (x, x)), ShapeError
