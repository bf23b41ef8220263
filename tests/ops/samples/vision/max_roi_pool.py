"""Samples of the ops of `clrt/ops/vision/max_roi_pool.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.vision.max_roi_pool import MaxRoiPool
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(MaxRoiPool)
def max_roi_pool_samples(cls: type[MaxRoiPool]) -> Iterator[Sample]:
    rng = np.random.default_rng(127)
    x = rng.standard_normal((2, 3, 6, 7)).astype(np.float32)
    rois = np.array([[0, 0, 0, 5, 4], [1, 1, 2, 6, 5], [1, 9, 9, 12, 12]], np.float32)
    yield Sample(cls((2, 3)), (x, rois))
    yield Sample(cls((3, 2), 0.5), (x, rois))
    yield Sample(cls((1, 1)), (x.astype(np.float16), rois.astype(np.float16)))
    x[0, :, 1, 2:4] = np.nan
    yield Sample(cls((2, 3)), (x, rois))


@error_samples_of(MaxRoiPool)
def max_roi_pool_errors(cls: type[MaxRoiPool]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros((1, 3, 4), "f4"), np.zeros((1, 5), "f4"))), ShapeError
    x, rois = np.zeros((1, 2, 3, 4), "f4"), np.zeros((1, 5), "f4")
    yield Sample(cls(), (x, rois[:, :4])), ShapeError
    yield Sample(cls(), (x, rois.astype(np.float16))), ShapeError
