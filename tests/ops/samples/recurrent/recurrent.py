"""Inputs of the recurrent ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clrt.ir.op import Array
from clrt.ops.recurrent.recurrent import Recurrent


def sample_inputs(
    cls: type[Recurrent],
    sizes: tuple[int, int, int, int],
    op: Recurrent,
    optional: Sequence[bool],
    dtype: Any = np.float32,
) -> tuple[Array | None, ...]:
    """Random inputs of T, B, I, H; `optional` says which of those from B on are there."""
    rng = np.random.default_rng(7)
    time, batch, depth, hidden = sizes
    directions, wide = op.directions, cls.gates * hidden
    lens = rng.integers(1, time + 1, batch).astype(np.int32) if time else np.zeros(batch, np.int32)
    state = (batch, directions, hidden) if op.layout else (directions, batch, hidden)
    shapes: list[tuple[int, ...]] = [
        (batch, time, depth) if op.layout else (time, batch, depth),
        (directions, wide, depth),
        (directions, wide, hidden),
        (directions, 2 * wide),
        lens.shape,
        state,
    ]
    if cls.states == 2:
        shapes += [state, (directions, 3 * hidden)]
    arrays: list[Array | None] = [rng.uniform(-1, 1, s).astype(dtype) for s in shapes]
    arrays[4] = lens
    return tuple(a if k < 3 or optional[k - 3] else None for k, a in enumerate(arrays))
