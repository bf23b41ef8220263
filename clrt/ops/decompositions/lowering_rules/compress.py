"""Replaces Compress with a known condition by Gather."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.graph import Node, Value
from clrt.ops.checks import normalize_axis
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.views import Reshape
from clrt.ops.tensor.non_zero import Compress


@register_decomposition(Compress, audience=DecompositionStage.PLANNING)
def _as_gather(node: Node, builder: Builder) -> list[Value] | None:
    """Replaces Compress by Gather, if the condition and the shape of x are known.

    Returns None if one is unknown, or the condition selects out of range.
    """
    op, x, condition = node.op_as(Compress), node.arg(0), node.arg(1)
    if condition.numbers is None or not x.type.is_static:
        return None
    axis = 0 if op.axis is None else normalize_axis(op.axis, len(x.dims), op)
    indices = np.flatnonzero(condition.numbers)
    if indices.size and indices[-1] >= (prod(x.dims) if op.axis is None else x.dims[axis]):
        return None  # out of range: the reference raises
    source = builder.add(Reshape(), x, builder.ints(-1)) if op.axis is None else x
    return [builder.add(Gather(axis), source, builder.constant(indices.astype(np.int64)))]
