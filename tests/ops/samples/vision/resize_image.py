"""Samples of the ops of `clrt/ops/vision/resize_image.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import Array
from clrt.ops.vision.resize_image import WEIGHT_BITS, ResizeImage
from tests.ops.samples.registry import Sample, error_samples_of, samples_of

RNG = np.random.default_rng(61)


def _axis(size: int, outputs: int, taps: int) -> tuple[Array, Array]:
    """First elements and weights, some below 0, that add up to 1 or so."""
    firsts = RNG.integers(0, size - taps + 1, outputs)
    firsts[-1:] = size - taps
    weights = RNG.uniform(-0.2, 1, (outputs, taps))
    weights *= (1 << WEIGHT_BITS) / np.maximum(np.abs(weights).sum(1, keepdims=True), 0.1)
    return firsts.astype(np.int32), np.rint(weights).astype(np.int32)


def _inputs(
    size: tuple[int, int],
    outputs: tuple[int, int],
    taps: tuple[int, int],
    batch: tuple[int, ...],
    place: tuple[int, int, int],
) -> tuple[Array, ...]:
    return (
        RNG.standard_normal(batch).astype(np.float32),
        RNG.integers(0, 256, (*size, 3), np.uint8),
        *_axis(size[1], outputs[1], taps[1]),
        *_axis(size[0], outputs[0], taps[0]),
        RNG.uniform(0.5, 2, (3, 3)).astype(np.float32),
        np.array(place, np.int32),
    )


@samples_of(ResizeImage)
def resize_image_samples(cls: type[ResizeImage]) -> Iterator[Sample]:
    yield Sample(cls(), _inputs((1, 1), (1, 1), (1, 1), (1, 3, 1, 1), (0, 0, 0)))
    yield Sample(cls(), _inputs((5, 7), (4, 3), (2, 7), (2, 3, 6, 5), (1, 1, 2)))
    yield Sample(cls(), _inputs((9, 30), (3, 17), (9, 5), (1, 3, 3, 17), (0, 0, 0)))
    yield Sample(cls(), _inputs((70, 14), (6, 32), (1, 12), (1, 3, 8, 33), (0, 2, 0)))
    yield Sample(cls(), _inputs((2, 6), (2, 20), (1, 1), (3, 3, 4, 40), (2, 0, 20)))
    yield Sample(cls(), _inputs((4, 11), (0, 0), (1, 1), (1, 3, 2, 2), (0, 0, 0)))
    last = cls(channels_last=True)
    yield Sample(last, _inputs((6, 25), (5, 19), (3, 8), (2, 6, 21, 3), (0, 1, 1)))
    yield Sample(last, _inputs((3, 4), (2, 3), (2, 2), (1, 2, 3, 3), (0, 0, 0)))
    turned = cls(transposed=True)
    yield Sample(turned, _inputs((6, 25), (5, 19), (3, 8), (2, 3, 21, 6), (1, 1, 2)))
    both = cls(channels_last=True, transposed=True)
    yield Sample(both, _inputs((5, 9), (4, 10), (2, 7), (2, 11, 4, 3), (1, 0, 1)))


@error_samples_of(ResizeImage)
def resize_image_errors(
    cls: type[ResizeImage],
) -> Iterator[tuple[Sample, type[Exception]]]:
    good = list(_inputs((5, 7), (4, 3), (2, 7), (2, 3, 6, 5), (1, 1, 2)))
    for index, wrong in (
        (0, np.zeros((2, 6, 5), np.float32)),
        (0, np.zeros((2, 4, 6, 5), np.float32)),
        (0, np.zeros((2, 3, 3, 5), np.float32)),
        (1, np.zeros((5, 7, 4), np.uint8)),
        (1, np.zeros((5, 7, 3), np.float32)),
        (1, np.zeros((5, 6, 3), np.uint8)),
        (2, np.zeros(4, np.int32)),
        (3, np.zeros((3, 0), np.int32)),
        (4, np.zeros(3, np.int32)),
        (6, np.zeros((2, 3), np.float32)),
        (7, np.zeros(2, np.int32)),
    ):
        inputs = (*good[:index], wrong, *good[index + 1 :])
        yield Sample(cls(), inputs), ShapeError
