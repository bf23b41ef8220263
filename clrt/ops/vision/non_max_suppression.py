"""NonMaxSuppression: the boxes that remain where others overlap them too much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import provably_different
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import fresh_dim
from clrt.ops.registry import register

_TILE = 128


@register
@dataclass(frozen=True)
class NonMaxSuppression(Op):
    """(batch, class, box) of the boxes that are kept, best first within a class.

    Inputs: boxes `[B, N, 4]`, scores `[B, C, N]`, and optionally how many boxes a class may keep
    (none by default), the overlap (intersection over union) above which the worse box goes, and
    the score that a box must exceed. Boxes are corners (y1, x1, y2, x2) in any order, or with
    `center_point_box` (x, y, width, height). How much comes out depends on the data: where its
    limits are known the device finds it (BestBoxes) and the host lists it, else the host does all.

    Source: ONNX NonMaxSuppression, opset 10 to 11.
    """

    center_point_box: bool = False

    accuracy = Accuracy.EXACT
    has_slow_reference = True

    def infer(self, inputs: Types) -> list[TensorType]:
        check_boxes(need(inputs, 0, self), need(inputs, 1, self), self)
        return [TensorType(DType.INT64, (fresh_dim(), 3))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        boxes, scores, *limits = inputs
        assert boxes is not None and scores is not None
        most, overlap, least = self.limits(*limits)
        kept: list[Array] = []
        for batch, label, found in keep_best(
            boxes, scores, self.center_point_box, most, overlap, least
        ):
            rows = np.empty((len(found), 3), np.int64)
            rows[:, 0], rows[:, 1], rows[:, 2] = batch, label, found
            kept.append(rows)
        return (np.concatenate([np.empty((0, 3), np.int64), *kept]),)

    def limits(
        self, most: Array | None = None, overlap: Array | None = None, least: Array | None = None
    ) -> tuple[int, float, float | None]:
        """The inputs behind the scores as numbers: how many, the overlap, the least score."""
        return (
            0 if most is None else max(int(most.reshape(-1)[0]), 0),
            0.0 if overlap is None else float(overlap.reshape(-1)[0]),
            None if least is None else float(least.reshape(-1)[0]),
        )


def check_boxes(boxes: TensorType, scores: TensorType, op: Op) -> None:
    """Refuses shapes that are not [B, N, 4] and [B, C, N].

    Raises:
        ShapeError: One is not, or B or N are two numbers.
    """
    for name, t in (("boxes", boxes), ("scores", scores)):
        if t.shape is not None and len(t.shape) != 3:
            raise ShapeError(f"{op.name}: {name} {t} must have three axes.")
    if boxes.shape is None:
        return
    if provably_different(boxes.shape[2], 4):
        raise ShapeError(f"{op.name}: boxes {boxes} must be [B, N, 4].")
    if scores.shape is None:
        return
    if provably_different(boxes.shape[0], scores.shape[0]) or provably_different(
        boxes.shape[1], scores.shape[2]
    ):
        raise ShapeError(
            f"{op.name}: boxes {boxes} [B, N, 4] do not fit scores {scores} [B, C, N]."
        )


def keep_best(
    boxes: Array, scores: Array, centres: bool, most: int, overlap: float, least: float | None
) -> Iterator[tuple[int, int, Array]]:
    """Batch, class, and the boxes that it keeps, best first.

    Args:
        centres: Whether boxes are centre and size.
        most: How many a class may keep.
        overlap: Intersection over union above which the worse box goes.
        least: What a score must exceed; None for any.
    """
    for batch, (rectangles, classes) in enumerate(zip(boxes, scores, strict=True)):
        corners = _corners(rectangles.astype(np.float32), centres)
        for label, row in enumerate(classes):
            places = np.arange(len(row)) if least is None else np.flatnonzero(row > least)
            order = places[np.argsort(-row[places], kind="stable")]
            yield batch, label, _select(corners, order, most, overlap)


@np.errstate(all="ignore")
def _corners(boxes: Array, centres: bool) -> Array:
    """Boxes as lower and upper corner."""
    if centres:
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
    a, b = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], 1)


@np.errstate(all="ignore")
def _select(corners: Array, order: Array, most: int, worst: float) -> Array:
    """The boxes kept, in order; each takes out those behind that overlap it by over `worst`."""
    boxes = corners[order]
    kept = [_keep(boxes, group, most, worst) for group in _groups(boxes)]
    places = np.sort(np.concatenate(kept)) if kept else np.empty(0, np.int64)
    return np.asarray(order[places[:most]])


def _groups(boxes: Array) -> list[Array]:
    """The places of boxes, in order, in groups that have no overlap along axis 0.

    Models that suppress by class give each class a range of coordinates of its own.
    """
    by_start = np.argsort(boxes[:, 0], kind="stable")
    reach = np.maximum.accumulate(boxes[by_start, 2])
    firsts = np.flatnonzero(boxes[by_start[1:], 0] > reach[:-1]) + 1
    return [np.sort(g) for g in np.split(by_start, firsts) if len(g)]


def _keep(boxes: Array, order: Array, most: int, worst: float) -> Array:
    """Those of a group that are kept.

    A tile of candidates at a time: matrices of overlaps are few calls of NumPy.
    """
    if len(order) == 1:
        return order
    kept = order[:0]
    for start in range(0, len(order), _TILE):
        if len(kept) >= most:
            break
        tile = order[start : start + _TILE]
        tile = tile[~_overlap(boxes[tile], boxes[kept], worst).any(axis=1)]
        within = _overlap(boxes[tile], boxes[tile], worst)
        alive = np.ones(len(tile), bool)
        for place in range(len(tile)):
            if alive[place]:
                alive[place + 1 :] &= ~within[place, place + 1 :]
        kept = np.concatenate([kept, tile[alive]])
    return kept


def _overlap(left: Array, right: Array, worst: float) -> Array:
    """Whether each box of one list overlaps each of another by more than `worst`."""
    common, height = (
        np.minimum.outer(left[:, axis + 2], right[:, axis + 2])
        - np.maximum.outer(left[:, axis], right[:, axis])
        for axis in (0, 1)
    )
    np.maximum(common, 0, out=common)
    common *= np.maximum(height, 0, out=height)
    least = np.add.outer(*((x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (left, right)))
    least -= common
    least *= worst
    # Boxes without an area have nothing in common; where infinite ones do, it has no share.
    return np.asarray(common > np.maximum(least, 0, out=least))
