"""Samples of the ops of `clrt/ops/vision/resize.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.vision.resize import Resize
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Resize)
def resize_samples(cls: type[Resize]) -> Iterator[Sample]:
    rng = np.random.default_rng(97)
    x = rng.standard_normal((1, 2, 4, 5)).astype(np.float32)
    grown, shrunk = np.array([[1, 1, 2.0, 1.5], [1, 1, 0.6, 0.5]], np.float32)
    sizes = np.array([7, 3])
    modes: list[Literal["nearest", "linear", "cubic"]] = ["nearest", "linear", "cubic"]
    for mode in modes:
        for scales in (grown, shrunk):
            yield Sample(cls(mode=mode), (x, None, scales))
        for place in ("align_corners", "asymmetric", "pytorch_half_pixel"):
            op = cls(mode=mode, axes=(2, 3), coordinate_transformation_mode=place)
            yield Sample(op, (x, None, None, sizes))
    for shape, factors in (
        ((3, 300), (2, 1)),
        ((9,), (1.5,)),
        ((1, 2, 3, 2, 5), (1, 1, 2, 2, 1.5)),
    ):
        for mode in modes:
            wide = rng.standard_normal(shape).astype(np.float32)
            yield Sample(cls(mode=mode), (wide, None, np.array(factors, np.float32)))
    for mode in ("linear", "cubic"):
        yield Sample(cls(mode=mode, antialias=True), (x, None, shrunk))
        yield Sample(cls(mode=mode, exclude_outside=True), (x, None, grown))
    crop = cls(
        mode="linear", coordinate_transformation_mode="tf_crop_and_resize", axes=(2, 3),
        extrapolation_value=9.0,
    )  # fmt: skip
    roi = np.array([0.4, -0.2, 1.3, 0.6], np.float32)
    yield Sample(crop, (x, roi, None, sizes))
    for policy in ("not_larger", "not_smaller"):
        op = cls(mode="nearest", axes=(2, 3), keep_aspect_ratio_policy=policy)
        yield Sample(op, (x, None, None, sizes))
    for rounding in ("by_scale", "ceil"):
        op = cls(nearest_mode=rounding, coordinate_transformation_mode="tf_half_pixel_for_nn")
        yield Sample(op, (x, None, np.array([1, 1, 0.6, 2], np.float32)))
    for dtype in (np.float16, np.uint8, np.int32):
        yield Sample(cls(mode="linear"), ((np.rint(x) * 16).astype(dtype), None, grown))
    yield Sample(cls(), ((x > 0), None, grown))
    yield Sample(cls(), (x, None, np.ones(4, np.float32)))
    yield Sample(cls(mode="cubic"), (x[:0], None, grown))


@error_samples_of(Resize)
def resize_errors(cls: type[Resize]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 2, 4), np.float32)
    yield Sample(cls(), (x, None, np.ones(2, np.float32))), ShapeError
    yield Sample(cls(), (x, None, np.array([1, 1, np.nan], np.float32))), ShapeError
    yield Sample(cls(), (x, None, None, np.array([1, 2, -4]))), ShapeError
    yield Sample(cls(), (x, None, np.array([1, 1, 3e38], np.float32))), ShapeError
    yield Sample(cls(axes=(2, -1)), (x, None, None, np.array([2, 4]))), ShapeError
