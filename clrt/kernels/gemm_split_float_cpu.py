"""Partition of large CPU GEMMs by the split-float paths of gemm_cpu.

Float operands are split into bfloat16 terms, which AMX multiplies
(kernels_cl/common/amx_split_gemm.clh), or into int16 terms with a scale, which int16 dot products
multiply (kernels_cl/common/int16_split_gemm.clh).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from clrt.device.caps import AMX_BFLOAT16, VNNI_INT8, DeviceCaps
from clrt.device.requires import Requires
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import HALVES
from clrt.kernels.gemm_problem import GemmProblem
from clrt.kernels.gemm_tile import panel_width
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

NEEDS = Requires(matrix=AMX_BFLOAT16)
# Required elements per vector (T_VW).
_LANES = 16
# Columns of B that are split into terms at a time: a pair of vectors.
_COLUMNS = 32
# bfloat16 terms per float32 operand.
_TERMS = 3
# Reason of a minimum size; {} is the name of the size.
_LEAST = "Minimum {} for which splitting into terms pays."


class SplitFloatThresholds(Thresholds):
    """Block sizes of the AMX path of a GEMM, and minimum sizes for which it pays.

    Attributes:
        rows: Rows of A that are split and multiplied at a time.
        depth: Terms are padded to a multiple of this along K, the summed axis.
        macro: Macro that enables the path in the kernel.
    """

    most_rows: int = tunable(
        512,
        "rows of A",
        "Maximum per piece, so that their terms and those of some panels of B stay in the "
        "second-level cache.",
    )
    groups: int = tunable(2, "work-groups per core", "Maximum; each needs memory for its terms.")
    splitting: int = tunable(
        2,
        "block products",
        "Time to split one operand block into terms, relative to that to multiply two blocks.",
    )
    least_rows: int = tunable(128, "rows", _LEAST.format("M"))
    least_k: int = tunable(128, "elements", _LEAST.format("K"))
    least_n: int = tunable(64, "columns", _LEAST.format("N"))
    least_millions: int = tunable(
        50,
        "million multiply-adds per core",
        "Minimum for which the path pays; MiniLM's GEMMs have 37 at 1 x 128, where it does not.",
    )

    group: ClassVar = "matrix_unit_shares"
    rows: ClassVar[int] = 32
    depth: ClassVar[int] = 32
    macro: ClassVar[str] = "USE_AMX"

    def pays(self, product: GemmProblem, caps: DeviceCaps) -> bool:
        """Returns whether a GEMM is large enough for the split-float path to be faster."""
        m, n, k = product.m, product.n, product.k
        enough = product.batches * m * n * k >= self.least_millions * 1_000_000 * caps.compute_units
        return enough and m >= self.least_rows and k >= self.least_k and n >= self.least_n

    @classmethod
    def words(cls, rows: int, depth: int) -> int:
        """Returns the memory that the terms of `rows` rows of A, or columns of B, need.

        Args:
            rows: Number of rows or columns.
            depth: Elements of each row, along the summed axis.

        Returns:
            The size in 4-byte words.
        """
        return _TERMS * rows * depth // 2

    @classmethod
    def defines(cls, _caps: DeviceCaps) -> dict[str, Define]:
        """Returns the macros that enable the split-float path in a kernel."""
        return {cls.macro: 1}


class Int16DotThresholds(SplitFloatThresholds):
    """Thresholds of the split-float path by int16 dot products instead of AMX.

    A 4-byte word holds two int16 terms; `depth` elements share a scale.
    """

    groups: int = tunable(1, "work-groups per core", "Maximum; each needs memory for its terms.")
    least_rows: int = tunable(32, "rows", _LEAST.format("M"))
    least_k: int = tunable(64, "elements", _LEAST.format("K"))
    least_n: int = tunable(32, "columns", _LEAST.format("N"))
    least_millions: int = tunable(
        2, "million multiply-adds per core", "Minimum for which the path pays."
    )

    group: ClassVar = "word_unit_shares"
    rows: ClassVar[int] = 8
    depth: ClassVar[int] = 64
    macro: ClassVar[str] = "USE_INT16_DOT"

    @classmethod
    def words(cls, rows: int, depth: int) -> int:
        return rows * depth // 2 + rows * depth // cls.depth

    @classmethod
    def defines(cls, caps: DeviceCaps) -> dict[str, Define]:
        return {cls.macro: 1, "DOT_ISA": int(VNNI_INT8 in caps.matrix_shapes)}


def unit_of(
    product: GemmProblem, tunables: Mapping[str, int], caps: DeviceCaps
) -> type[SplitFloatThresholds] | None:
    """Returns the split-float path that kernels of a GEMM include, as its thresholds class.

    The result does not depend on the number of rows of A.

    Args:
        product: The GEMM.
        tunables: Tunables of gemm_cpu.

    Returns:
        The class; None if the device has no such path for the operands, or the tunables disable
        it.
    """
    if tunables["T_VW"] != _LANES or not tunables["T_UP"]:
        return None
    if NEEDS.missing(caps) is None:
        return SplitFloatThresholds
    has_dots = VNNI_INT8 in caps.matrix_shapes or caps.simulator
    halves = product.right in HALVES and product.a_dtype is not None
    return Int16DotThresholds if has_dots and halves else None


@dataclass(frozen=True)
class SplitFloatWork:
    """Partition of one split-float launch into pieces, which are rectangles of the result.

    Attributes:
        slot: Scratch memory per work-group, in 4-byte words.
        b_at: Offset of the terms of B in this memory, in 4-byte words.
        sums_at: Offset of the partial sums in this memory, in 4-byte words.
        sums_row: Partial sums per row that are kept from one chunk of K, the summed axis, to the
            next; 0 if K is one chunk.
        pieces: Number of pieces of the result, distributed to the work-groups.
        columns: Columns per piece.
        height: Rows per piece.
        groups: Number of work-groups.
    """

    slot: int
    b_at: int
    sums_at: int
    sums_row: int
    pieces: int
    columns: int
    height: int
    groups: int

    # Integer arguments that the macro MMA_INPUTS declares.
    NUMBERS: ClassVar = ("slot", "b_at", "sums_at", "sums_row", "pieces", "columns")

    @property
    def numbers(self) -> dict[str, int]:
        """Kernel arguments by name: the attributes in NUMBERS."""
        return {name: getattr(self, name) for name in self.NUMBERS}

    @classmethod
    def of(
        cls,
        product: GemmProblem,
        tunables: Mapping[str, int],
        shares: SplitFloatThresholds,
        caps: DeviceCaps,
    ) -> SplitFloatWork:
        """Returns the partition of a split-float GEMM that is estimated to be the fastest.

        Args:
            product: The GEMM.
            tunables: Tunables of gemm_cpu.
            shares: Thresholds of the split-float path.
        """
        m, n, k, units = product.m, product.n, product.k, caps.compute_units
        panel, at_once, chunk = panel_width(tunables), tunables["T_UP"], tunables["T_KC"]
        panels = ceil_div(n, panel)

        def pieces(shape: tuple[int, int]) -> int:
            return product.batches * ceil_div(m, shape[0]) * ceil_div(panels, shape[1])

        def time(shape: tuple[int, int]) -> int:
            rows, columns = ceil_div(shape[0], _COLUMNS), ceil_div(shape[1] * panel, _COLUMNS)
            piece_time = rows * columns + shares.splitting * (rows + columns)
            return ceil_div(pieces(shape), units) * piece_time

        stripes = ceil_div(m, shares.most_rows)
        choices = range(stripes, stripes + 2 * units)
        heights = {round_up(ceil_div(m, s), shares.rows) for s in choices}
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
