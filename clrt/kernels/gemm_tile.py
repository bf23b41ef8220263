"""The tile of registers that a CPU's matrix product holds: T_MR rows by T_NV vectors of T_VW."""

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
    """When another tile than the record's is taken.

    Attributes:
        worth_percent: Of the time of the record's tile: what another program must stay below to be
            worth its compile.
        speeds: Instead of a tile of rows x vectors x lanes: rows x vectors, and the percentage of
            its speed that they reach.

    Source: PoCL and Intel's runtime, Zen 5; 6 x 2 vectors of 8 reach 60 % of 4 x 3.
    """

    worth_percent: int
    speeds: Mapping[str, Mapping[str, int]]

    group: ClassVar = "gemm_tiles"

    def others(self, rows: int, vectors: int, lanes: int) -> list[tuple[int, int, float]]:
        """Rows, vectors and the share of its speed, of what may stand in place of a tile."""
        found = self.speeds.get(f"{rows}x{vectors}x{lanes}", {})
        pairs = ((name.split("x"), percent / 100) for name, percent in found.items())
        return [(int(r), int(v), speed) for (r, v), speed in pairs]


def select_tile(kernel: TunedKernel, product: GemmProblem, ctx: Lowering) -> dict[str, int]:
    """The kernel's tunables, with another tile where its panels fit N better.

    A product of 64 columns computes 96 with 8 x 3 vectors of 16, and 64 with 6 x 4.
    """
    tunables = ctx.tunables(kernel)
    rows, vectors, lanes = (tunables[t] for t in ("T_MR", "T_NV", "T_VW"))
    if not has_fixed_width(product):
        return tunables

    def time(other: tuple[int, int, float]) -> float:
        return round_up(product.n, other[1] * lanes) / other[2]

    own, tiles = (rows, vectors, 1.0), ctx.thresholds(GemmTiles)
    best = min((own, *tiles.others(rows, vectors, lanes)), key=time)
    if time(best) > tiles.worth_percent / 100 * time(own):
        return tunables
    return {**tunables, "T_MR": best[0], "T_NV": best[1]}


def panel_width(tunables: Mapping[str, int]) -> int:
    """Columns of a panel of B."""
    return tunables["T_NV"] * tunables["T_VW"]


def has_fixed_width(product: GemmProblem) -> bool:
    """Whether N is the last size of y in the model, and not of this call's shapes: a program that
    goes by it is then compiled once.
    """
    known = product.y.symbolic_shape if isinstance(product.y, Value) else None
    last = known[-1] if known else product.n
    return not product.n_varies and isinstance(last, int) and last == product.n


def is_whole(product: GemmProblem, lanes: int) -> bool:
    """Whether each row of y is whole vectors, at every shape."""
    return has_fixed_width(product) and not product.n % lanes and not product.y_offset % lanes
