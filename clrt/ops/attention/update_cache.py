"""UpdateCache: writes new rows into a KV cache, and grows the cache if they do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.dims import Dim
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.attention.tensor_scatter import TensorScatter
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.movement.common import elements, fresh_dim
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.pad import Pad
from clrt.ops.pointwise.table import Sub
from clrt.ops.pointwise.variadic import Max
from clrt.ops.registry import register
from clrt.ops.tensor.shape import Shape_

_ROWS = TensorScatter(-2)


@register
@dataclass(frozen=True)
class UpdateCache(Op):
    """A cache with `rows` written from one position per sequence on, and at least `total` rows.

    Inputs: a cache `[B, H, P, D]`, rows `[B, H, S, D]`, the position of the first of them `[B]`,
    and total, an int64 `[1]`. Output: `[B, H, max(P, total), D]`; added rows that are not written
    are 0.

    Planning decomposes it into Pad and TensorScatter. If the cache is donated, the rows are written
    in place: the output has the shape of the cache, total is not read, and one plan serves all
    lengths.

    Attributes:
        grows: Whether the cache may grow; False if it is donated.

    Source: clrt; past and present of com.microsoft's GroupQueryAttention.
    """

    grows: bool = True

    domain = "clrt"
    accuracy = Accuracy.EXACT
    supported_storages = None
    same_dtype_inputs = ((0, 1),)
    index_inputs = (2,)
    required_inputs = (2, 3)
    plan_time_inputs = (3,)

    def in_donated(self) -> Op:
        return replace(self, grows=False)

    def infer(self, inputs: Types) -> list[TensorType]:
        cache = need(inputs, 0, self)
        if not self.grows or cache.shape is None:
            return _ROWS.infer(inputs[:3])
        total, (batch, heads, size, width) = elements(inputs, 3), cache.shape
        capacity: Dim = fresh_dim()
        if total is not None and isinstance(total[0], int) and isinstance(size, int):
            capacity = max(size, total[0])
        grown = TensorType(cache.dtype, (batch, heads, capacity, width))
        return _ROWS.infer([grown, *inputs[1:3]])

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        cache, rows, first, total = inputs
        assert cache is not None and total is not None
        more = max(int(total[0]) - cache.shape[2], 0) if self.grows else 0
        grown = np.pad(cache, [(0, 0), (0, 0), (0, more), (0, 0)])
        return _ROWS.reference(grown, rows, first)


@register_decomposition(UpdateCache, audience=DecompositionStage.PLANNING)
def _planned(node: Node, make: Builder) -> Sequence[Value] | None:
    """Decomposes the op if all sizes are numbers: only then is it known if the cache is donated."""
    op, cache = node.op, node.arg(0)
    assert isinstance(op, UpdateCache)
    ready = cache.type.is_static and (not op.grows or node.arg(3).has_numbers)
    return update_parts(node, make) if ready else None


def update_parts(node: Node, make: Builder) -> Sequence[Value]:
    """Adds nodes that pad the cache, if it grows, and write the rows into it."""
    op, (cache, rows, first, total) = node.op, [node.arg(i) for i in range(4)]
    assert isinstance(op, UpdateCache)
    if op.grows:
        missing = make.add(Sub(), total, make.add(Shape_(2, 3), cache))
        more = make.add(Max(), missing, make.ints(0))
        pads = make.add(Concat(0), make.ints(0), more)
        cache = make.add(Pad(), cache, pads, None, make.ints(2))
    return [make.add(_ROWS, cache, rows, first)]
