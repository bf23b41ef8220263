"""Decomposes LayerNormalization and RMSNormalization whose scale or bias is broadcast."""

from __future__ import annotations

import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.graph import Node, Value
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.norm.layer_normalization import Normalization, is_row
from clrt.ops.pointwise.table import Add, Mul


@register_decomposition(Normalization, audience=DecompositionStage.PLANNING)
def _with_broadcast(node: Node, make: Builder) -> list[Value] | None:
    """Decomposes a normalization whose scale or bias has another shape than a normalized row.

    It becomes a normalization with scale 1, then Mul and Add. Returns None if scale and bias have
    the shape of a row, a shape is unknown, or dtypes differ.
    """
    op = node.op_as(Normalization)
    x, *affine = [v for v in node.inputs if v is not None]
    if x.shape is None or any(v.dtype is not x.dtype for v in affine):
        return None
    row = op.row(x.shape)
    shapes = [v.type.static_shape for v in affine]
    if not all(isinstance(d, int) for d in row) or None in shapes:
        return None
    if all(s is not None and is_row(s, row) for s in shapes):
        return None
    ones = make.constant(np.ones([int(d) for d in row], x.dtype.numpy))
    y, *statistics = make.add_all(op, x, ones)
    for affine_op, value in zip((Mul(), Add()), affine, strict=False):
        y = make.add(affine_op, y, value)
    return [y, *statistics]
