"""Samples of the ops of `clrt/ops/norm/group_normalization_last.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ModelError, ShapeError
from clrt.ir.op import ElementwiseInstruction
from clrt.ops.norm.group_normalization_last import ChannelsLastGroupNormalization
from clrt.ops.pointwise.table import Mul, Relu, Sigmoid
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(ChannelsLastGroupNormalization)
def group_normalization_last_samples(
    cls: type[ChannelsLastGroupNormalization],
) -> Iterator[Sample]:
    rng = np.random.default_rng(41)
    for shape, groups in [
        ((1, 1, 1), 1), ((2, 7, 6), 3), ((2, 3, 5, 72), 1), ((1, 4, 3, 90), 9), ((1, 9, 13, 8), 8),
        ((1, 515, 6), 3), ((0, 2, 4), 2),
    ]:  # fmt: skip
        for per_group in (False, True):
            x = rng.standard_normal(shape).astype(np.float32) + 3
            size = groups if per_group else shape[-1]
            affine = rng.uniform(0.5, 2, (2, size)).astype(np.float32)
            yield Sample(cls(groups, per_group=per_group), (x, affine[0], affine[1]))
    relu = (ElementwiseInstruction(Relu(), (0,)),)
    swish = (ElementwiseInstruction(Sigmoid(), (0,)), ElementwiseInstruction(Mul(), (0, 1)))
    for steps, shape in ((relu, (2, 3, 4, 8)), (swish, (1, 5, 42))):
        x = rng.standard_normal(shape).astype(np.float32)
        affine = rng.uniform(0.5, 2, (2, shape[-1])).astype(np.float32)
        yield Sample(cls(2, steps=steps), (x, affine[0], affine[1]))
    x = np.full((1, 40, 6), 3e38, np.float32)
    yield Sample(cls(2), (x, np.ones(6, np.float32), np.ones(6, np.float32)))


@error_samples_of(ChannelsLastGroupNormalization)
def group_normalization_last_errors(
    cls: type[ChannelsLastGroupNormalization],
) -> Iterator[tuple[Sample, type[Exception]]]:
    x, scale = np.zeros((2, 4, 3), np.float32), np.zeros(3, np.float32)
    yield Sample(cls(2), (x, scale, scale)), ShapeError
    yield Sample(cls(3), (x, scale[:2], scale)), ShapeError
    yield Sample(cls(3), (scale, scale, scale)), ShapeError
    yield Sample(cls(1), (scale[0], scale[:1], scale[:1])), ShapeError
    yield Sample(cls(3), (x, scale)), ModelError
