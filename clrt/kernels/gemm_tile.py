"""Register tile of the CPU GEMM: T_MR rows by T_NV vectors of T_VW columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from clrt.ir.graph import Value
from clrt.kernels.gemm_problem import GemmProblem
from clrt.kernels.thresholds import Thresholds
from clrt.kernels.tuned import TunedKernel
from clrt.kernels.variant import Lowering
from clrt.util.math import round_up


@dataclass(frozen=True)
class GemmTiles(Thresholds):
    """Tiles that a GEMM may use instead of the tuning record's, for less padding of its columns.

    Attributes:
        worth_percent: Maximum time with another tile, as a percentage of the time with the record's
            tile, for which it is worth compiling another program.
        speeds: Alternatives by tile, with their speed in percent of the tile's speed: "4x3x8", a
            tile of 4 rows and 3 vectors of 8 lanes, may map to {"6x2": 60}.

    Source: PoCL and Intel's runtime, Zen 5; 6 x 2 vectors of 8 reach 60 % of 4 x 3.
    """

    worth_percent: int
    speeds: Mapping[str, Mapping[str, int]]

    group: ClassVar = "gemm_tiles"

    def others(self, rows: int, vectors: int, lanes: int) -> list[tuple[int, int, float]]:
        """Returns the alternatives to a tile: (rows, vectors, speed relative to the tile's).

        Args:
            rows: Rows of the tile (T_MR).
            vectors: Vectors per row of the tile (T_NV).
            lanes: Elements per vector (T_VW).
        """
        speeds = self.speeds.get(f"{rows}x{vectors}x{lanes}", {})
        pairs = ((name.split("x"), percent / 100) for name, percent in speeds.items())
        return [(int(r), int(v), speed) for (r, v), speed in pairs]


def select_tile(kernel: TunedKernel, product: GemmProblem, ctx: Lowering) -> dict[str, int]:
    """Returns the tunables of a CPU GEMM kernel, with the tile that is fastest for its columns.

    Columns are padded to whole panels: 64 columns to 96 by tiles of 8 rows x 3 vectors of 16, but
    not by tiles of 6 rows x 4 vectors.
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
