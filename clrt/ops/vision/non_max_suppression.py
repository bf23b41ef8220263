"""NonMaxSuppression: drops boxes that overlap better ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import provably_different
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import fresh_dim
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits
from clrt.util.fast_dataclass import dataclass

_TILE = 128  # candidates that are compared at once


@register
@dataclass(frozen=True)
class NonMaxSuppression(Op):
    """Selects boxes by non-maximum suppression; returns int64 `[K, 3]`: batch, class, box.

    The K rows list the boxes of each class, best first. Inputs: boxes `[B, N, 4]` and scores
    `[B, C, N]`, for B images, N boxes and C classes; optionally the maximum number of boxes per
    class (default 0), the maximum overlap (intersection over union; of two boxes above it, the
    worse one is dropped), and the score that a box must exceed. The output size depends on data: if
    the limits are known, the device selects (BestBoxes) and the host lists; else all runs on the
    host.

    Attributes:
        center_point_box: Whether boxes are (x, y, width, height), with x and y of the centre; else
            boxes are opposite corners (y1, x1, y2, x2) in any order.

    Source: ONNX NonMaxSuppression, opset 10 to 11.
    """

    center_point_box: bool = False

    accuracy = Accuracy.EXACT
    host_traits = HostTraits(has_slow_reference=True)

    def infer(self, inputs: Types) -> list[TensorType]:
        check_boxes(need(inputs, 0, self), need(inputs, 1, self), self)
        return [TensorType(DType.INT64, (fresh_dim(), 3))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        boxes, scores, *limits = inputs
        assert boxes is not None and scores is not None
        most, overlap, least = self.limits(*limits)
        selections: list[Array] = []
        for batch, label, indices in keep_best(
            boxes, scores, self.center_point_box, most, overlap, least
        ):
            rows = np.empty((len(indices), 3), np.int64)
            rows[:, 0], rows[:, 1], rows[:, 2] = batch, label, indices
            selections.append(rows)
        return (np.concatenate([np.empty((0, 3), np.int64), *selections]),)

    def limits(
        self, most: Array | None = None, overlap: Array | None = None, least: Array | None = None
    ) -> tuple[int, float, float | None]:
        """Returns the optional inputs as numbers; an omitted one has its default.

        Args:
            most: Maximum number of boxes per class; default 0.
            overlap: Maximum intersection over union; default 0.0.
            least: Score that a box must exceed; default None, no limit.
        """
        return (
            0 if most is None else max(int(most.reshape(-1)[0]), 0),
            0.0 if overlap is None else float(overlap.reshape(-1)[0]),
            None if least is None else float(least.reshape(-1)[0]),
        )


def check_boxes(boxes: TensorType, scores: TensorType, op: Op) -> None:
    """Checks that boxes are `[B, N, 4]` and scores `[B, C, N]`; unknown shapes and dims pass.

    B is the number of images, N of boxes, C of classes.

    Raises:
        ShapeError: A shape is different, or B or N differ between boxes and scores.
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
            f"{op.name}: boxes {boxes} [B, N, 4] do not match scores {scores} [B, C, N]."
        )


def keep_best(
    boxes: Array, scores: Array, centres: bool, most: int, overlap: float, least: float | None
) -> Iterator[tuple[int, int, Array]]:
    """Yields batch index, class index, and the indices of the class's selected boxes, best first.

    Args:
        boxes: `[B, N, 4]`, for B images and N boxes.
        scores: `[B, C, N]`, for C classes.
        centres: Whether boxes are (x, y, width, height), with x and y of the centre; else two
            opposite corners.
        most: Maximum number of boxes per class.
        overlap: Maximum intersection over union; of two boxes above it, the worse one is dropped.
        least: Score that a box must exceed; None for no limit.
    """
    for batch, (rectangles, classes) in enumerate(zip(boxes, scores, strict=True)):
        corners = _corners(rectangles.astype(np.float32), centres)
        for label, row in enumerate(classes):
            candidates = np.arange(len(row)) if least is None else np.flatnonzero(row > least)
            order = candidates[np.argsort(-row[candidates], kind="stable")]
            yield batch, label, _select(corners, order, most, overlap)


@np.errstate(all="ignore")
def _corners(boxes: Array, centres: bool) -> Array:
    """Converts boxes to lower and upper corners, `[boxes, 4]`.

    Args:
        boxes: `[boxes, 4]`: two opposite corners each, or centre and size.
        centres: Whether boxes are centre and size.
    """
    if centres:
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
    a, b = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], 1)


@np.errstate(all="ignore")
def _select(corners: Array, order: Array, most: int, worst: float) -> Array:
    """Returns the indices of the boxes that non-maximum suppression keeps, best first.

    Args:
        corners: Lower and upper corners of all boxes, `[boxes, 4]`.
        order: Indices of the candidate boxes, best first.
        most: Maximum number of boxes kept.
        worst: Maximum overlap: a kept box drops all later boxes whose overlap with it exceeds this.
    """
    boxes = corners[order]
    kept_by_group = [_keep(boxes, group, most, worst) for group in _disjoint_groups(boxes)]
    kept = np.sort(np.concatenate(kept_by_group)) if kept_by_group else np.empty(0, np.int64)
    return np.asarray(order[kept[:most]])


def _disjoint_groups(boxes: Array) -> list[Array]:
    """Splits boxes into groups whose ranges along the first coordinate axis are disjoint.

    Models that suppress per class give each class its own range of coordinates.

    Args:
        boxes: Lower and upper corners `[boxes, 4]`.

    Returns:
        Row indices into `boxes` per group, ascending.
    """
    by_start = np.argsort(boxes[:, 0], kind="stable")
    reach = np.maximum.accumulate(boxes[by_start, 2])
    firsts = np.flatnonzero(boxes[by_start[1:], 0] > reach[:-1]) + 1
    return [np.sort(g) for g in np.split(by_start, firsts) if len(g)]


def _keep(boxes: Array, order: Array, most: int, worst: float) -> Array:
    """Returns the row indices of the boxes of a group that non-maximum suppression keeps.

    The function processes tiles of candidates, so that few NumPy calls compute all overlaps.

    Args:
        boxes: Lower and upper corners of all candidate boxes, best first.
        order: Row indices of the group's boxes, best first.
        most: Number of kept boxes after which no further tile is processed.
        worst: Maximum overlap of two kept boxes.
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
    """Returns whether the overlap of each pair of boxes exceeds `worst`, bool `[left, right]`.

    Args:
        left: Lower and upper corners of boxes, `[left, 4]`.
        right: Lower and upper corners of other boxes, `[right, 4]`.
        worst: Intersection over union.
    """
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
    # Boxes of area 0 overlap nothing; neither do infinite boxes.
    return np.asarray(common > np.maximum(least, 0, out=least))
