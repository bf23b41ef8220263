"""The tile of registers that a CPU's matrix product holds: T_MR rows by T_NV vectors of T_VW."""

from __future__ import annotations

from collections.abc import Mapping

from clrt.ir.graph import Value
from clrt.kernels.product import Product
from clrt.kernels.spec import Lowering, round_up
from clrt.kernels.tuned import TunedKernel

_MOST_ROWS = 14  # common/repeat.clh
_MOST_VECTORS = 4
# Of the columns that the record's tile computes: what makes another program worth its compile.
_LESS = 0.9


def tile(kernel: TunedKernel, product: Product, ctx: Lowering) -> dict[str, int]:
    """The kernel's tunables, with another tile of as many sums where its panels fit N better.

    With 24 sums, tiles of 8 x 3 vectors of 16, 6 x 4 and 12 x 2 run equally fast, but a product of
    64 columns computes 96, 64 or 64. One vector to a row waits for its loads (0.82 of their
    speed), so it is for products of one vector.
    """
    tunables = ctx.tunables(kernel)
    rows, vectors, lanes = (tunables[t] for t in ("T_MR", "T_NV", "T_VW"))
    if not has_fixed_width(product):
        return tunables
    sums = rows * vectors
    registers = 1 << (sums + vectors).bit_length()

    def columns(vectors: int) -> int:
        return round_up(product.n, vectors * lanes)

    least = 1 if product.n <= lanes else 2
    most = min(_MOST_VECTORS, sums)
    choices = [v for v in range(most, least - 1, -1) if sums + v < registers]
    best = min(choices, key=columns, default=vectors)
    if columns(best) > _LESS * columns(vectors):
        return tunables
    return {**tunables, "T_NV": best, "T_MR": min(sums // best, _MOST_ROWS)}


def width(tunables: Mapping[str, int]) -> int:
    """Columns of a panel of B."""
    return tunables["T_NV"] * tunables["T_VW"]


def has_fixed_width(product: Product) -> bool:
    """Whether N is the last size of y in the model, and not of this call's shapes: a program that
    goes by it is then compiled once.
    """
    known = product.y.symbolic if isinstance(product.y, Value) else None
    width = known[-1] if known else product.n
    return isinstance(width, int) and width == product.n
