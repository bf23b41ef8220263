"""How a product is shared out for a CPU's matrix unit (kernels_cl/common/unit_product.clh)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from clrt.device.caps import AMX_BFLOAT16, DeviceCaps
from clrt.device.requires import Requires
from clrt.ir.code import Define
from clrt.kernels.product import Product
from clrt.kernels.spec import ceil_div, round_up
from clrt.kernels.thresholds import Thresholds
from clrt.kernels.tiles import width

NEEDS = Requires(matrix=AMX_BFLOAT16)
_LANES = 16  # of the vectors that tiles are made from
_PAIR = 32  # rows of a pair of tiles of A, columns of one of B, and their depth
_PARTS = 3  # numbers of bfloat16 for one of float32


@dataclass(frozen=True)
class UnitShares(Thresholds):
    """How much the matrix unit takes at once, and from where on it pays to split A and B.

    Attributes:
        most_rows: At once: their parts and those of some panels stay in the second-level cache.
        groups: Work-groups for each core, at most: each has memory for the parts.
        splitting: Products of two pairs in the time that it takes to split one.
        least_millions: Of multiply-adds for each core; MiniLM's products have 37 at 1 x 128, where
            it does not pay.
    """

    most_rows: int
    groups: int
    splitting: int
    least_rows: int
    least_k: int
    least_n: int
    least_millions: int

    group: ClassVar = "matrix_unit_shares"

    def pays(self, product: Product, caps: DeviceCaps) -> bool:
        """Whether there is enough for the matrix unit to do."""
        m, n, k = product.m, product.n, product.k
        enough = product.batches * m * n * k >= self.least_millions * 1_000_000 * caps.compute_units
        return enough and m >= self.least_rows and k >= self.least_k and n >= self.least_n


@dataclass(frozen=True)
class UnitWork:
    """One launch over a product; sizes in words of 4 bytes.

    Attributes:
        slot: Memory of a work-group.
        b_at, sums_at: Where in it the parts of B and the sums are.
        sums_row: Sums of a row, if they wait for the next chunk of K; else 0.
        pieces: Of the product, shared out among the work-groups.
        columns: Of a piece.
        height: Rows of a piece.
        groups: Work-groups.
    """

    slot: int
    b_at: int
    sums_at: int
    sums_row: int
    pieces: int
    columns: int
    height: int
    groups: int

    # What UNIT_INPUTS declares behind the memory.
    NUMBERS: ClassVar = ("slot", "b_at", "sums_at", "sums_row", "pieces", "columns")

    @property
    def numbers(self) -> dict[str, int]:
        """The values of NUMBERS."""
        return {name: getattr(self, name) for name in self.NUMBERS}

    @classmethod
    def of(
        cls, product: Product, tunables: Mapping[str, int], shares: UnitShares, caps: DeviceCaps
    ) -> UnitWork:
        """How the cores end soonest."""
        m, n, k, units = product.m, product.n, product.k, caps.compute_units
        panel, at_once, chunk = width(tunables), tunables["T_UP"], tunables["T_KC"]
        panels = ceil_div(n, panel)

        def pieces(shape: tuple[int, int]) -> int:
            return product.batches * ceil_div(m, shape[0]) * ceil_div(panels, shape[1])

        def time(shape: tuple[int, int]) -> int:
            rows, columns = ceil_div(shape[0], _PAIR), ceil_div(shape[1] * panel, _PAIR)
            of_one = rows * columns + shares.splitting * (rows + columns)
            return ceil_div(pieces(shape), units) * of_one

        fewest = ceil_div(m, shares.most_rows)
        heights = {round_up(ceil_div(m, s), _PAIR) for s in range(fewest, fewest + 2 * units)}
        spans = {ceil_div(panels, s) for s in range(1, 2 * units + 1)}
        shape = min(((h, s) for h in sorted(heights) for s in sorted(spans)), key=time)
        height, span = shape
        group = round_up(at_once * panel, _PAIR)
        depth = round_up(min(k, chunk), _PAIR)
        b_at = _parts(height, depth)
        sums_at = b_at + _parts(group, depth)
        sums_row = ceil_div(span, at_once) * group if k > chunk else 0
        slot = sums_at + (height * sums_row or _PAIR * group)
        groups = min(pieces(shape), shares.groups * units)
        return cls(slot, b_at, sums_at, sums_row, pieces(shape), span * panel, height, groups)


def unit_defines(tunables: Mapping[str, int], caps: DeviceCaps) -> dict[str, Define]:
    """The macro of kernels that can go by the matrix unit."""
    usable = NEEDS.lacking(caps) is None and tunables["T_VW"] == _LANES and tunables["T_UP"]
    return {"MATRIX_UNIT": 1} if usable else {}


def _parts(rows: int, depth: int) -> int:
    """Words for the parts of rows of A, or columns of B: two numbers to a word."""
    return _PARTS * rows * depth // 2
