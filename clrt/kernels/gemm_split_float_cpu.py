"""How products of many rows are shared out where a CPU multiplies parts of A and B.

By its matrix unit (kernels_cl/common/unit_product.clh), or by dots of whole numbers of 16 bits
(kernels_cl/common/word_product.clh).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from clrt.device.caps import AMX_BFLOAT16, VNNI_INT8, DeviceCaps
from clrt.device.requires import Requires
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import HALVES
from clrt.kernels.gemm_problem import GemmProblem
from clrt.kernels.gemm_tile import panel_width
from clrt.kernels.thresholds import Thresholds
from clrt.util.math import ceil_div, round_up

NEEDS = Requires(matrix=AMX_BFLOAT16)
_LANES = 16  # of the vectors that parts are made from
_COLUMNS = 32  # of a pair of vectors of B
_PARTS = 3  # numbers of bfloat16 for one of float32


@dataclass(frozen=True)
class UnitShares(Thresholds):
    """How much the matrix unit takes at once, and from where on it pays to split A and B.

    Attributes:
        most_rows: At once: their parts and those of some panels stay in the second-level cache.
        groups: Work-groups for each core, at most: each has memory for the parts.
        splitting: Products of parts of A and B in the time that it takes to split one.
        least_rows, least_k, least_n: Of products for it.
        least_millions: Of multiply-adds for each core; MiniLM's products have 37 at 1 x 128, where
            it does not pay.
        rows, depth: Of a part of A; of K, to which parts are padded.
        macro: Which form of the kernel has it.
    """

    most_rows: int
    groups: int
    splitting: int
    least_rows: int
    least_k: int
    least_n: int
    least_millions: int

    group: ClassVar = "matrix_unit_shares"
    rows: ClassVar[int] = 32
    depth: ClassVar[int] = 32
    macro: ClassVar[str] = "MATRIX_UNIT"

    def pays(self, product: GemmProblem, caps: DeviceCaps) -> bool:
        """Whether there is enough for it to do."""
        m, n, k = product.m, product.n, product.k
        enough = product.batches * m * n * k >= self.least_millions * 1_000_000 * caps.compute_units
        return enough and m >= self.least_rows and k >= self.least_k and n >= self.least_n

    @classmethod
    def words(cls, rows: int, depth: int) -> int:
        """Of 4 bytes, for the parts of rows of A, or of columns of B."""
        return _PARTS * rows * depth // 2

    @classmethod
    def defines(cls, _caps: DeviceCaps) -> dict[str, Define]:
        """The macros of kernels that can go this way."""
        return {cls.macro: 1}


@dataclass(frozen=True)
class Int16DotThresholds(UnitShares):
    """The same for dots of whole numbers: two to a word, and a scale for each `depth`."""

    group: ClassVar = "word_unit_shares"
    rows: ClassVar[int] = 8
    depth: ClassVar[int] = 64
    macro: ClassVar[str] = "WORD_UNIT"

    @classmethod
    def words(cls, rows: int, depth: int) -> int:
        return rows * depth // 2 + rows * depth // cls.depth

    @classmethod
    def defines(cls, caps: DeviceCaps) -> dict[str, Define]:
        return {cls.macro: 1, "DOTS": int(VNNI_INT8 in caps.matrix_shapes)}


def unit_of(
    product: GemmProblem, tunables: Mapping[str, int], caps: DeviceCaps
) -> type[UnitShares] | None:
    """By what products of many rows go whose shapes are like this one's, whatever the rows."""
    if tunables["T_VW"] != _LANES or not tunables["T_UP"]:
        return None
    if NEEDS.missing(caps) is None:
        return UnitShares
    has_dots = VNNI_INT8 in caps.matrix_shapes or caps.simulator
    halves = product.right in HALVES and product.a_dtype is not None
    return Int16DotThresholds if has_dots and halves else None


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
        cls, product: GemmProblem, tunables: Mapping[str, int], shares: UnitShares, caps: DeviceCaps
    ) -> UnitWork:
        """How the cores end soonest."""
        m, n, k, units = product.m, product.n, product.k, caps.compute_units
        panel, at_once, chunk = panel_width(tunables), tunables["T_UP"], tunables["T_KC"]
        panels = ceil_div(n, panel)

        def pieces(shape: tuple[int, int]) -> int:
            return product.batches * ceil_div(m, shape[0]) * ceil_div(panels, shape[1])

        def time(shape: tuple[int, int]) -> int:
            rows, columns = ceil_div(shape[0], _COLUMNS), ceil_div(shape[1] * panel, _COLUMNS)
            of_one = rows * columns + shares.splitting * (rows + columns)
            return ceil_div(pieces(shape), units) * of_one

        fewest = ceil_div(m, shares.most_rows)
        heights = {round_up(ceil_div(m, s), shares.rows) for s in range(fewest, fewest + 2 * units)}
        spans = {ceil_div(panels, s) for s in range(1, 2 * units + 1)}
        shape = min(((h, s) for h in sorted(heights) for s in sorted(spans)), key=time)
        height, span = shape
        group = round_up(at_once * panel, _COLUMNS)
        depth = round_up(min(k, chunk), shares.depth)
        b_at = shares.words(height, depth)
        sums_at = b_at + shares.words(group, depth)
        sums_row = ceil_div(span, at_once) * group if k > chunk else 0
        slot = sums_at + (height * sums_row or shares.rows * group)
        groups = min(pieces(shape), shares.groups * units)
        return cls(slot, b_at, sums_at, sums_row, pieces(shape), span * panel, height, groups)
