"""Samples of the ops of `clrt/ops/vision/roi_align.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import Array
from clrt.ops.vision.roi_align import RoiAlign
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(RoiAlign)
def roi_align_samples(cls: type[RoiAlign]) -> Iterator[Sample]:
    rng = np.random.default_rng(109)
    x = rng.uniform(0, 1, (2, 3, 6, 7)).astype(np.float32)
    rois = np.array([[0, 0, 5, 4], [1.5, 0.2, 6.3, 5.9], [-3, 2, 9, 8]], np.float32)
    batches = np.array([0, 1, 1])
    for place in ("half_pixel", "output_half_pixel"):
        for mode in ("avg", "max"):
            for ratio in (0, 2):
                op = cls(place, mode, 2, 3, ratio, 0.9)
                yield Sample(op, (x, rois, batches))
    yield Sample(cls("half_pixel", "avg", 2, 2), (x[:, :, :0], rois, batches))
    yield Sample(cls("half_pixel", "avg", 1, 2), (x.astype("f2"), rois.astype("f2"), batches))
    many = rng.uniform(-1, 1, (1, 70, 6, 7)).astype(np.float32)
    for mode in ("avg", "max"):
        yield Sample(cls("half_pixel", mode, 1, 1, 9), (many, rois[:1], batches[:1]))
    x[0, :, 1, 2:4] = np.nan
    yield Sample(cls("half_pixel", "max", 2, 3, 2), (x, rois, batches))


@error_samples_of(RoiAlign)
def roi_align_errors(cls: type[RoiAlign]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 3, 4), np.float32)
    yield Sample(cls(), (x, np.zeros((1, 4), np.float32), np.zeros(1, np.int64))), ShapeError
    good = x[None], np.zeros((2, 4), np.float32), np.zeros(2, np.int64)
    changes: list[tuple[int, Array]] = [
        (1, good[1][:1]),
        (1, good[1][:, :3]),
        (1, good[1].astype(np.float16)),
        (2, good[2][:1]),
        (2, good[2].astype(np.float32)),
    ]
    for index, wrong in changes:
        yield Sample(cls(), (*good[:index], wrong, *good[index + 1 :])), ShapeError
    for op in (cls(output_height=0), cls(output_width=-1), cls(sampling_ratio=-1),
               cls(sampling_ratio=(1 << 31) - 1)):  # fmt: skip
        yield Sample(op, good), ShapeError
