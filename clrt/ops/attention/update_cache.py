"""UpdateCache: writes new rows into a KV cache, and grows the cache if they do not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clrt.ir.dims import Dim
from clrt.ir.op import Array, TensorType
from clrt.ops.attention.tensor_scatter import TensorScatter
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import elements, fresh_dim
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass

_ROWS = TensorScatter(-2)


@register
@dataclass(frozen=True)
class UpdateCache(Op):
    """Writes new rows to a KV cache, and grows it to at least `total` rows.

    Inputs: a cache `[B, H, P, D]` and new rows `[B, H, S, D]`, for B sequences, H heads, P cached
    and S new rows of D elements; the position in the cache of the first new row of each sequence
    `[B]`; total, an int64 `[1]`. Output: `[B, H, max(P, total), D]`; added rows that are not
    written are 0.

    Planning decomposes this op into Pad and TensorScatter. If the cache is donated, the rows are
    written in place: the output has the shape of the cache, total is not read, and one plan serves
    all lengths.

    Attributes:
        grows: Whether the cache may grow; False if it is donated.

    Source: clrt; past and present of com.microsoft's GroupQueryAttention.
    """

    grows: bool = True

    domain = "clrt"
    accuracy = Accuracy.EXACT
    supported_storages = None
    input_traits = InputTraits(required=(2, 3), index=(2,), plan_time=(3,), same_dtype=((0, 1),))

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
