"""The tile of registers that a CPU's matrix product holds: T_MR rows by T_NV vectors of T_VW."""

from __future__ import annotations

from collections.abc import Mapping

from clrt.ir.graph import Value
from clrt.kernels.product import Product
from clrt.kernels.spec import round_up
from clrt.kernels.tuned import TunedKernel
from clrt.kernels.variant import Lowering

# Instead of a tile of rows x vectors of lanes: rows, vectors, and the share of its speed. Measured
# on PoCL and Intel's runtime, Zen 5; 6 x 2 vectors of 8 reach 0.6 of 4 x 3.
_OTHERS = {
    (8, 3, 16): ((6, 4, 1.0), (12, 2, 1.0), (14, 1, 0.82)),
    (4, 3, 8): ((12, 1, 0.87),),
}
# Of the time of the record's tile: what makes another program worth its compile.
_LESS = 0.9


def tile(kernel: TunedKernel, product: Product, ctx: Lowering) -> dict[str, int]:
    """The kernel's tunables, with another tile where its panels fit N better.

    A product of 64 columns computes 96 with 8 x 3 vectors of 16, and 64 with 6 x 4.
    """
    tunables = ctx.tunables(kernel)
    rows, vectors, lanes = (tunables[t] for t in ("T_MR", "T_NV", "T_VW"))
    if not has_fixed_width(product):
        return tunables

    def time(other: tuple[int, int, float]) -> float:
        return round_up(product.n, other[1] * lanes) / other[2]

    own = (rows, vectors, 1.0)
    best = min((own, *_OTHERS.get((rows, vectors, lanes), ())), key=time)
    if time(best) > _LESS * time(own):
        return tunables
    return {**tunables, "T_MR": best[0], "T_NV": best[1]}


def width(tunables: Mapping[str, int]) -> int:
    """Columns of a panel of B."""
    return tunables["T_NV"] * tunables["T_VW"]


def has_fixed_width(product: Product) -> bool:
    """Whether N is the last size of y in the model, and not of this call's shapes: a program that
    goes by it is then compiled once.
    """
    known = product.y.symbolic if isinstance(product.y, Value) else None
    last = known[-1] if known else product.n
    return isinstance(last, int) and last == product.n


def is_whole(product: Product, lanes: int) -> bool:
    """Whether each row of y is whole vectors, at every shape."""
    return has_fixed_width(product) and not product.n % lanes and not product.y_offset % lanes
