"""NonMaxSuppression: the boxes that remain where others overlap them too much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import differ
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.movement import fresh_dim
from clrt.ops.registry import register

_TILE = 128


@register
@dataclass(frozen=True)
class NonMaxSuppression(Op):
    """(batch, class, box) of the boxes that are kept, best first within a class.

    Inputs: boxes `[B, N, 4]`, scores `[B, C, N]`, and optionally how many boxes a class may keep
    (none by default), the overlap (intersection over union) above which the worse box goes, and
    the score that a box must exceed. Boxes are corners (y1, x1, y2, x2) in any order, or with
    `center_point_box` (x, y, width, height). Runs on the host: how much comes out depends on the
    data. Source: ONNX NonMaxSuppression, opset 10 to 11.
    """

    center_point_box: bool = False

    accuracy = Accuracy.EXACT
    stepwise = True

    def infer(self, inputs: Types) -> list[TensorType]:
        boxes, scores = need(inputs, 0, self), need(inputs, 1, self)
        for name, t, rank in (("boxes", boxes, 3), ("scores", scores, 3)):
            if t.shape is not None and len(t.shape) != rank:
                raise ShapeError(f"NonMaxSuppression: {name} {t} must have three axes.")
        if boxes.shape is not None and differ(boxes.shape[2], 4):
            raise ShapeError(f"NonMaxSuppression: boxes {boxes} must be [B, N, 4].")
        return [TensorType(DType.INT64, (fresh_dim(), 3))]

    @np.errstate(all="ignore")
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        boxes, scores, limit, overlap, least = (*inputs, None, None, None)[:5]
        assert boxes is not None and scores is not None
        most = 0 if limit is None else int(limit.reshape(-1)[0])
        worst = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
        kept: list[Array] = []
        for batch, (rectangles, classes) in enumerate(zip(boxes, scores, strict=True)):
            corners = self._corners(rectangles.astype(np.float32))
            for label, row in enumerate(classes):
                order = np.argsort(-row, kind="stable")
                if least is not None:
                    order = order[row[order] > float(least.reshape(-1)[0])]
                found = _select(corners, order, most, worst)
                rows = np.empty((len(found), 3), np.int64)
                rows[:, 0], rows[:, 1], rows[:, 2] = batch, label, found
                kept.append(rows)
        return (np.concatenate([np.empty((0, 3), np.int64), *kept]),)

    def _corners(self, boxes: Array) -> Array:
        """Boxes as lower and upper corner."""
        if self.center_point_box:
            half = boxes[:, 2:] / 2
            return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
        a, b = boxes[:, :2], boxes[:, 2:]
        return np.concatenate([np.minimum(a, b), np.maximum(a, b)], 1)


def _select(corners: Array, order: Array, most: int, worst: float) -> Array:
    """The boxes kept, in order; each takes out those behind that overlap it by over `worst`."""
    boxes = corners[order]
    kept = [_keep(boxes, group, most, worst) for group in _groups(boxes)]
    places = np.sort(np.concatenate(kept)) if kept else np.empty(0, np.int64)
    return np.asarray(order[places[: max(most, 0)]])


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
