"""Splits elementwise ops with more operands than a kernel reads into trees of nodes."""

from __future__ import annotations

from clrt.ir.builder import Builder
from clrt.ir.graph import Node, Value
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.pointwise.variadic import MAX_OPERANDS, Variadic


@register_decomposition(Variadic, audience=DecompositionStage.PLANNING)
def _in_levels(node: Node, make: Builder) -> list[Value] | None:
    """Decomposes an op of more than `MAX_OPERANDS` operands into a tree of nodes.

    Returns None if the op has at most `MAX_OPERANDS` operands.
    """
    op = node.op_as(Variadic)
    level = [v for v in node.inputs if v is not None]
    count = len(level)
    if count <= MAX_OPERANDS:
        return None
    while len(level) > 1:
        parts = [level[k : k + MAX_OPERANDS] for k in range(0, len(level), MAX_OPERANDS)]
        level = [make.add(op.partial, *part) for part in parts]
    return [op.finish(level[0], count, make)]
