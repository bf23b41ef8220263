"""Inlines If: one branch if its condition is known, else both branches if they are small."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.errors import ClrtError
from clrt.ir.builder import Builder
from clrt.ir.graph import Node, Value
from clrt.ir.op import ContainerType
from clrt.ops.control.control_flow import If
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.matmul.matmul import MatrixProduct
from clrt.ops.movement.views import View
from clrt.ops.norm.layer_normalization import Normalization
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.fused import Fused
from clrt.ops.pointwise.table import Where
from clrt.ops.reduce.reduction import Reduce

# Limits for running both branches of an If and selecting: that costs tens of us, reading the
# condition from the device hundreds.
_FEW_NODES = 32
_FEW_ELEMS = 4096  # elements per computed tensor
_FEW_CONSTANTS = 1 << 18  # total elements of constants
# Ops that cannot fail, whatever the data.
_ARITHMETIC = (Pointwise, Fused, View, Reduce, Normalization, MatrixProduct)


@register_decomposition(If, audience=DecompositionStage.PLANNING)
def _inline_branch(node: Node, builder: Builder) -> list[Value] | None:
    """Inlines the branch of an If that runs, if its condition is known.

    If the condition is unknown, small branches are both inlined, with Where (`_both`).

    Returns:
        The outputs; None if neither is possible.
    """
    condition = node.input(0)
    if condition is None:
        return None
    if condition.numbers is None:
        return _both(node, builder)
    return builder.inline(node.op_as(If).graphs[not np.all(condition.numbers)], node.inputs[1:])


def _both(node: Node, builder: Builder) -> list[Value] | None:
    """Inlines both branches of an If and selects their outputs with Where.

    For small branches this is faster than reading the condition. Both together may have at most
    `_FEW_NODES` nodes, `_FEW_ELEMS` elements per tensor, and `_FEW_CONSTANTS` elements of
    constants. TensorFlow exports `break` and `continue` as small branches.

    Returns:
        The outputs; None if the branches are larger, can fail, or their outputs differ in type.
    """
    graphs = node.op.graphs
    inputs = [v for v in node.inputs if v is not None and not isinstance(v.type, ContainerType)]
    nodes = [n for g in graphs for n in g.nodes]
    if len(inputs) < len(node.inputs) or len(nodes) > _FEW_NODES or not all(map(_computes, nodes)):
        return None
    then, other = (builder.inline(g, inputs[1:]) for g in graphs)
    try:
        for inner in builder.nodes:
            (inner.output.type,) = inner.op.infer(inner.input_types)
    except ClrtError:  # the branch may never run
        return None
    pairs = list(zip(then, other, strict=True))
    min_rank = len(inputs[0].shape or ())
    read = dict.fromkeys(v for n in builder.nodes for v in n.inputs if v is not None)
    constants = [v for v in read if v.is_constant]
    computed = (inputs[0], *(v for v in read if not v.is_constant), *then, *other)
    if sum(prod(v.dims) for v in constants) > _FEW_CONSTANTS or not all(map(_is_small, computed)):
        return None
    if any(a.dims != b.dims or a.dtype is not b.dtype or len(a.dims) < min_rank for a, b in pairs):
        return None
    return [builder.add(Where(), inputs[0], a, b) for a, b in pairs]


def _computes(node: Node) -> bool:
    """Returns whether a node of a branch has one output and an arithmetic op that cannot fail."""
    op = node.op
    return isinstance(op, _ARITHMETIC) and not op.input_traits.index and len(node.outputs) == 1


def _is_small(value: Value) -> bool:
    """Returns whether a value is a device tensor of at most `_FEW_ELEMS` elements.

    Returns False if its shape has symbols or is unknown.
    """
    dims = value.type.static_shape
    return dims is not None and prod(dims) <= _FEW_ELEMS and not value.type.on_host
