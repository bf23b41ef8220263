"""Constant low-bit weights with a scale and zero point per block of K, for CPU GEMM kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from clrt.ir.cl_code import Define
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.panel_layout import Panels
from clrt.kernels.quantized_weights import QuantizedWeights
from clrt.kernels.spec import PackedWeight
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up


@dataclass(frozen=True)
class BlockQuantizedWeights(QuantizedWeights):
    """Constant low-bit B: an element is (level - zero point) * scale.

    A block along K, the summed axis, shares one scale and one zero point.

    Attributes:
        n: Columns of B.
        k: Rows of B.
        bits: Bits per level: 2, 4 or 8.
        size: Elements of K per block; a whole number of bytes.
        levels: uint8 `[N, bytes]`; a byte holds 8 / bits consecutive elements of K, the first in
            the low bits.
        scales: Constant with the scales.
        zeros: Constant with the zero points; None if the format has none.
        pair: Returns scales and zero points, float32 `[N, blocks, 2]`, from the elements of
            `scales`.
    """

    n: int
    k: int
    bits: int
    size: int
    levels: Value
    scales: Value
    zeros: Value | None
    pair: Callable[[Array], Array] = field(repr=False)

    @property
    def defines(self) -> dict[str, Define]:
        return {"BITS": self.bits}

    def args(self, columns: int) -> dict[str, Any]:
        levels, pairs = self._packed(columns)
        return {"b": levels, "blocks": pairs, "block_size": self.size}

    def _packed(self, width: int) -> tuple[PackedWeight, PackedWeight]:
        """Returns two packed weights for B: its levels, and its scales with zero points.

        Args:
            width: Columns per panel.
        """
        count = ceil_div(self.k, self.size)
        panels = Panels(2 * count, self.n, width, transposed=True)
        nbytes = 8 * count * round_up(self.n, width)
        name = f"blocks_of_{panels.layout}" + (f":{self.zeros.name}" if self.zeros else "")
        pairs = PackedWeight(self.scales, name, lambda array: panels.pack(self.pair(array)), nbytes)
        lines = count * self.size * self.bits // 8
        return Panels(lines, self.n, width, transposed=True).of(self.levels), pairs
