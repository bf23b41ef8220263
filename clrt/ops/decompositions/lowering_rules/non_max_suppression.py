"""Replaces NonMaxSuppression with known limits by BestBoxes and ListBoxes."""

from __future__ import annotations

from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.vision.best_boxes import BestBoxes, ListBoxes
from clrt.ops.vision.non_max_suppression import (
    NonMaxSuppression,
)

# Maximum pairs per class (boxes times maximum kept boxes), which one work-item compares at worst:
# 0.1 s on a CPU. Larger problems run on the host, where they can be interrupted.
_MAX_PAIRS = 1 << 27


@register_decomposition(NonMaxSuppression, audience=DecompositionStage.LOWERING)
def _on_device(node: Node, builder: Builder) -> list[Value] | None:
    """Replaces NonMaxSuppression by BestBoxes on the device and ListBoxes on the host.

    Returns None if a limit (number of boxes, overlap, score) or a shape is unknown, boxes or scores
    are not float32, or there are more than `_MAX_PAIRS` pairs of boxes to compare per class.
    """
    op, boxes, scores = node.op_as(NonMaxSuppression), node.arg(0), node.arg(1)
    limits = [node.input(i) for i in range(2, 5)]
    if any(v is not None and not v.has_numbers for v in limits):
        return None
    if not (boxes.type.is_static and scores.type.is_static):
        return None
    if not boxes.dtype is scores.dtype is DType.FLOAT32:
        return None
    max_boxes, overlap, min_score = op.limits(*(None if v is None else v.numbers for v in limits))
    count = scores.dims[2]
    max_boxes = min(max_boxes, count)
    if max_boxes * count > _MAX_PAIRS:
        return None
    best = builder.add(BestBoxes(op.center_point_box, max_boxes, overlap, min_score), boxes, scores)
    return [builder.add(ListBoxes(), best)]
