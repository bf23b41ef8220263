"""BestBoxes and ListBoxes: non-maximum suppression on the device, and its result as a list."""

from __future__ import annotations

import numpy as np

from clrt.errors import ModelError, ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import fresh_dim
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits
from clrt.ops.vision.non_max_suppression import (
    check_boxes,
    keep_best,
)
from clrt.util.fast_dataclass import dataclass


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    boxes, scores, y, op = node.arg(0), node.arg(1), node.output, node.op_as(BestBoxes)
    batch, classes, count = scores.dims
    rows = batch * classes
    if not rows * op.most:
        return []
    kernel = KernelSpec.of("vision/best_boxes.cl", "best_boxes", CENTRES=op.center_point_box)
    heap = ctx.scratch(max(rows * count, 1), DType.INT32)
    sizes = dict(count=count, classes=classes, most=op.most, rows=rows)
    limits = dict(overlap=op.overlap, least=0.0 if op.least is None else op.least)
    args = dict(boxes=boxes, scores=scores, heap=heap, y=y, all=int(op.least is None))
    return [launch(kernel, (rows,), (1,), **args, **sizes, **limits)]


@register
@dataclass(frozen=True)
class BestBoxes(Op):
    """Selects boxes per class by non-maximum suppression: int32 `[B, C, most]`, best first.

    Inputs: boxes `[B, N, 4]` and scores `[B, C, N]`, for B images, C classes and N boxes. Output:
    indices of boxes; unused elements are -1. At planning, NonMaxSuppression, whose output size
    depends on data, is replaced by BestBoxes on the device and ListBoxes on the host.

    Attributes:
        center_point_box: Whether boxes are (x, y, width, height), with x and y of the centre; else
            two opposite corners.
        most: Maximum number of boxes per class.
        overlap: Maximum intersection over union; of two boxes above it, the worse one is dropped.
        least: Score that a box must exceed; None for no limit.

    Source: clrt.
    """

    center_point_box: bool = False
    most: int = 0
    overlap: float = 0.0
    least: float | None = None

    domain = "clrt"
    accuracy = Accuracy.EXACT
    supported_storages = frozenset({"plain"})
    host_traits = HostTraits(has_slow_reference=True)
    variants = (Variant("any", _emit),)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < 0:
            raise ModelError(f"BestBoxes: attribute 'most' is {self.most}; expected 0 or more.")

    def infer(self, inputs: Types) -> list[TensorType]:
        boxes, scores = need(inputs, 0, self), need(inputs, 1, self)
        if not boxes.dtype is scores.dtype is DType.FLOAT32:
            raise ShapeError(f"BestBoxes: boxes {boxes} and scores {scores} must be float32.")
        check_boxes(boxes, scores, self)
        batch, classes, _ = scores.shape or (fresh_dim(), fresh_dim(), 0)
        return [TensorType(DType.INT32, (batch, classes, self.most))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        boxes, scores = inputs
        assert boxes is not None and scores is not None
        result = np.full((*scores.shape[:2], self.most), -1, np.int32)
        selections = keep_best(
            boxes, scores, self.center_point_box, self.most, self.overlap, self.least
        )
        for batch, label, indices in selections:
            result[batch, label, : len(indices)] = indices
        return (result,)


@register
class ListBoxes(Op):
    """Lists the output of BestBoxes as int64 `[boxes, 3]`: batch, class, box. Runs on the host.

    Source: clrt.
    """

    domain = "clrt"
    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        boxes = need(inputs, 0, self)
        if boxes.shape is not None and len(boxes.shape) != 3:
            raise ShapeError(f"ListBoxes: {boxes} must be [B, C, most].")
        return [TensorType(DType.INT64, (fresh_dim(), 3))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (kept,) = inputs
        assert kept is not None
        batch, label, rank = np.nonzero(kept >= 0)
        return (np.stack([batch, label, kept[batch, label, rank]], axis=1).astype(np.int64),)
