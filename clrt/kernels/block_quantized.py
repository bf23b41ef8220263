"""Constant weights of few bits, as the matrix products read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.panel_layout import Panels
from clrt.kernels.spec import PackedWeight
from clrt.util.math import ceil_div, round_up


@dataclass(frozen=True)
class BlockQuantizedWeights:
    """A constant B of few bits: (level - zero point) * scale, one of each per block along K.

    Attributes:
        bits: 2, 4 or 8.
        size: Places of K in a block; whole bytes.
        levels: uint8 `[N, bytes]`, a byte holding 8 / bits places of K, the first one low.
        scales, zeros: The constants that `pair` takes its numbers from.
        pair: Scales and zero points, float32 `[N, blocks, 2]`, from the elements of `scales`.
    """

    bits: int
    size: int
    levels: Value
    scales: Value
    zeros: Value | None
    pair: Callable[[Array], Array]

    def packed(self, n: int, k: int, width: int) -> tuple[PackedWeight, PackedWeight]:
        """Levels, and scales with zero points, in panels of `panel_width` columns."""
        count = ceil_div(k, self.size)
        panels = Panels(2 * count, n, width, transposed=True)
        nbytes = 8 * count * round_up(n, width)
        name = f"blocks_of_{panels.layout}" + (f":{self.zeros.name}" if self.zeros else "")
        pairs = PackedWeight(self.scales, name, lambda array: panels.pack(self.pair(array)), nbytes)
        lines = count * self.size * self.bits // 8
        return Panels(lines, n, width, transposed=True).of(self.levels), pairs
