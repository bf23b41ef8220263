"""Register tile of the CPU GEMM: T_MR rows by T_NV vectors of T_VW columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from clrt.ir.graph import Value
from clrt.kernels.gemm_problem import GemmProblem
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import TunedKernel
from clrt.kernels.variant import Lowering
from clrt.util.math import round_up


def _speed(percent: int, tile: str) -> Any:
    return tunable(percent, "percent", f"Speed of a tile of {tile}.")


class GemmTiles(Thresholds):
    """Tiles that a GEMM may use instead of the tuning record's, for less padding of its columns.

    Speeds were measured on PoCL and Intel's runtime, Zen 5; 6 x 2 vectors of 8 reach 60 % of 4 x 3.
    """

    worth_percent: int = tunable(
        90,
        "percent",
        "Maximum time of another tile, relative to the record's tile, for which it is worth "
        "compiling another program.",
    )
    wide_6x4: int = _speed(100, "6 x 4 vectors of 16 relative to 8 x 3")
    wide_8x2: int = _speed(98, "8 x 2 vectors of 16 relative to 8 x 3")
    wide_14x1: int = _speed(82, "14 x 1 vectors of 16 relative to 8 x 3")
    narrow_4x2: int = _speed(85, "4 x 2 vectors of 8 relative to 4 x 3")
    narrow_12x1: int = _speed(70, "12 x 1 vectors of 8 relative to 4 x 3")

    group: ClassVar = "gemm_tiles"

    def others(self, rows: int, vectors: int, lanes: int) -> list[tuple[int, int, float]]:
        """Returns the alternatives to a tile: (rows, vectors, speed relative to the tile's).

        Args:
            rows: Rows of the tile (T_MR).
            vectors: Vectors per row of the tile (T_NV).
            lanes: Elements per vector (T_VW).

        Returns:
            One entry per alternative; [] for a tile without measured alternatives.
        """
        if (rows, vectors, lanes) == (8, 3, 16):
            speeds = ((6, 4, self.wide_6x4), (8, 2, self.wide_8x2), (14, 1, self.wide_14x1))
            return [(r, v, percent / 100) for r, v, percent in speeds]
        if (rows, vectors, lanes) == (4, 3, 8):
            return [(4, 2, self.narrow_4x2 / 100), (12, 1, self.narrow_12x1 / 100)]
        return []


def select_tile(kernel: TunedKernel, product: GemmProblem, ctx: Lowering) -> dict[str, int]:
    """Returns the tunables of a CPU GEMM kernel, with the tile that is fastest for its columns.

    Columns are padded to whole panels: 64 columns to 96 by tiles of 8 rows x 3 vectors of 16, but
    not by tiles of 6 rows x 4 vectors. The tuning record's tile is kept if the number of columns
    varies with the input shapes, or if another tile saves too little.
    """
    tunables = ctx.tunables(kernel)
    rows, vectors, lanes = (tunables[t] for t in ("T_MR", "T_NV", "T_VW"))
    if not has_fixed_width(product):
        return tunables

    def time(other: tuple[int, int, float]) -> float:
        return round_up(product.n, other[1] * lanes) / other[2]

    default, tiles = (rows, vectors, 1.0), ctx.thresholds(GemmTiles)
    best = min((default, *tiles.others(rows, vectors, lanes)), key=time)
    if time(best) > tiles.worth_percent / 100 * time(default):
        return tunables
    return {**tunables, "T_MR": best[0], "T_NV": best[1]}


def panel_width(tunables: Mapping[str, int]) -> int:
    """Returns the number of columns per panel of B.

    Args:
        tunables: Tunables of the kernel, with T_NV and T_VW.
    """
    return tunables["T_NV"] * tunables["T_VW"]


def has_fixed_width(product: GemmProblem) -> bool:
    """Returns whether N, the columns of B, is the same at all input shapes.

    Only then may the choice of a kernel depend on N.
    """
    known = product.y.symbolic_shape if isinstance(product.y, Value) else None
    last = known[-1] if known else product.n
    return not product.n_varies and isinstance(last, int) and last == product.n


def is_whole(product: GemmProblem, lanes: int) -> bool:
    """Returns whether the rows of y consist of whole aligned vectors, at all input shapes.

    Args:
        lanes: Elements per vector.
    """
    return has_fixed_width(product) and not product.n % lanes and not product.y_offset % lanes
