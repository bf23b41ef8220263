"""Samples of the ops of `clrt/ops/tensor/constant_of_shape.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ops.tensor.constant_of_shape import ConstantOfShape
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(ConstantOfShape)
def constant_of_shape_samples(cls: type[ConstantOfShape]) -> Iterator[Sample]:
    for shape in [(), (3,), (2, 65), (0, 2)]:
        wanted = np.array(shape, np.int64)
        yield Sample(cls(), (wanted,))
        yield Sample(cls(-1.5, DType.FLOAT16), (wanted,))
        yield Sample(cls(-7, DType.INT64), (wanted,))
        yield Sample(cls(True, DType.BOOL), (wanted,))


@error_samples_of(ConstantOfShape)
def constant_of_shape_errors(
    cls: type[ConstantOfShape],
) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.array([2, -1]),)), ShapeError
