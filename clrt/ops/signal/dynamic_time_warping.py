"""DynamicTimeWarping: finds the cheapest path through a matrix, on the host."""

from __future__ import annotations

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


@register
class DynamicTimeWarping(Op):
    """Returns the rows and columns of the cheapest path through a cost matrix, int32 `[2, steps]`.

    The path leads from the first to the last element of input 0, `[rows, columns]` or
    `[1, rows, columns]`. Each step advances the row, the column or both. Of the three elements that
    a step may come from, the one with the cheapest path wins; on a tie for the cheapest, the step
    advances the column only.

    Source: com.microsoft DynamicTimeWarping 1.
    """

    domain = "com.microsoft"
    accuracy = Accuracy.EXACT
    host_traits = HostTraits(has_slow_reference=True)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        ranks = {2: 1, 3: 1 if x.shape is None else x.shape[0]}
        if x.shape is not None and provably_different(ranks.get(len(x.shape), 0), 1):
            raise ShapeError(f"DynamicTimeWarping: its input is {x}; expected [M,N] or [1,M,N].")
        return [TensorType(DType.INT32, (2, fresh_dim()))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        costs = x.reshape(x.shape[-2:]).astype(np.float32)
        rows, columns = costs.shape
        total = np.full((rows + 1, columns + 1), np.inf, np.float32)
        total[0, 0] = 0
        steps = np.zeros((rows + 1, columns + 1), np.int8)
        for i in range(1, rows + 1):
            for j in range(1, columns + 1):
                both, row, column = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
                if both < row and both < column:
                    step, before = 0, both
                elif row < both and row < column:
                    step, before = 1, row
                else:
                    step, before = 2, column
                total[i, j], steps[i, j] = before + costs[i - 1, j - 1], step
        path: list[tuple[int, int]] = []
        i, j = rows, columns
        while i and j:
            path.append((i - 1, j - 1))
            step = steps[i, j]
            i, j = i - (step != 2), j - (step != 1)
        return (np.array(path[::-1], np.int32).reshape(-1, 2).T,)
