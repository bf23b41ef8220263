"""Decomposes UpdateCache into Pad and TensorScatter."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.ir.builder import Builder
from clrt.ir.graph import Node, Value
from clrt.ops.attention.tensor_scatter import TensorScatter
from clrt.ops.attention.update_cache import UpdateCache
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.pad import Pad
from clrt.ops.pointwise.table import Sub
from clrt.ops.pointwise.variadic import Max
from clrt.ops.tensor.shape import Shape_

_ROWS = TensorScatter(-2)


@register_decomposition(UpdateCache, audience=DecompositionStage.PLANNING)
def _planned(node: Node, make: Builder) -> Sequence[Value] | None:
    """Decomposes UpdateCache once all its sizes are numbers; returns None before.

    Only then is it known whether the memory of the cache can be overwritten.
    """
    op, cache = node.op_as(UpdateCache), node.arg(0)
    ready = cache.type.is_static and (not op.grows or node.arg(3).has_numbers)
    return update_parts(node, make) if ready else None


def update_parts(node: Node, make: Builder) -> Sequence[Value]:
    """Adds the nodes that UpdateCache stands for; returns the new cache as its only element.

    The nodes pad the cache if it may grow, and write the new rows.
    """
    op, (cache, rows, first, total) = node.op_as(UpdateCache), [node.arg(i) for i in range(4)]
    if op.grows:
        missing = make.add(Sub(), total, make.add(Shape_(2, 3), cache))
        more = make.add(Max(), missing, make.ints(0))
        pads = make.add(Concat(0), make.ints(0), more)
        cache = make.add(Pad(), cache, pads, None, make.ints(2))
    return [make.add(_ROWS, cache, rows, first)]
