"""Samples of the ops of `clrt/ops/vision/best_boxes.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.vision.best_boxes import BestBoxes, ListBoxes
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(BestBoxes)
def best_boxes_samples(cls: type[BestBoxes]) -> Iterator[Sample]:
    rng = np.random.default_rng(94)
    boxes = rng.uniform(0, 10, (2, 40, 4)).astype(np.float32)
    scores = rng.uniform(0, 1, (2, 3, 40)).astype(np.float32)
    for centres in (False, True):
        yield Sample(cls(centres, 40, 0.3, 0.2), (boxes, scores))
        yield Sample(cls(centres, 5, 0.1, None), (boxes, scores))
    yield Sample(cls(False, 3, 0.5, 0.95), (boxes, scores))
    yield Sample(cls(False, 0, 0.5, 0.5), (boxes, scores))
    yield Sample(cls(False, 4, 0.5, 0.5), (boxes[:, :0], scores[:, :, :0]))
    yield Sample(cls(False, 4, 0.5, 0.5), (boxes, scores[:, :0]))
    yield Sample(cls(False, 2, 0.5, 0.0), (boxes[:, :1], scores[:, :, :1]))
    # Equal scores go by their numbers, and those that are none come last.
    rough = np.round(4 * scores) / 4
    rough[rng.uniform(size=rough.shape) < 0.2] = np.nan
    rough[0, 0, :3] = -np.inf, np.inf, -0.0
    odd = np.round(boxes)
    odd[0, :4] = [[0, 0, np.inf, np.inf], [np.nan, 0, 1, 1], [2, 2, 2, 8], [0, 0, 3e38, 3e38]]
    for least in (None, 0.25, np.nan):
        yield Sample(cls(False, 40, 0.25, least), (odd, rough))
    yield Sample(cls(True, 40, 0.0, None), (odd, rough))
    yield Sample(cls(False, 40, 1.0, None), (odd, rough))


@samples_of(ListBoxes)
def list_boxes_samples(cls: type[ListBoxes]) -> Iterator[Sample]:
    yield Sample(cls(), (np.array([[[4, 0, -1], [-1, -1, -1]], [[2, -1, -1], [1, 0, 2]]], "i4"),))
    yield Sample(cls(), (np.zeros((2, 0, 3), "i4"),))


@error_samples_of(BestBoxes)
def best_boxes_errors(cls: type[BestBoxes]) -> Iterator[tuple[Sample, type[Exception]]]:
    boxes, scores = np.zeros((1, 2, 4), "f4"), np.zeros((1, 1, 2), "f4")
    yield Sample(cls(), (boxes[:, :, :3], scores)), ShapeError
    yield Sample(cls(), (boxes[0], scores)), ShapeError
    yield Sample(cls(), (boxes, scores[:, :, :1])), ShapeError
    yield Sample(cls(), (boxes.astype("f2"), scores)), ShapeError


@error_samples_of(ListBoxes)
def list_boxes_errors(cls: type[ListBoxes]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros((1, 2), "i4"),)), ShapeError
