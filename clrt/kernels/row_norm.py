"""A normalisation of rows behind what computes them, in the same launch on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clrt.ir.cl_code import Define
from clrt.ir.graph import Value
from clrt.kernels.spec import optional


@dataclass(frozen=True)
class RowNorm:
    """z[m, :] = the row y[m, :] of a matrix, normalised, scaled and shifted.

    Attributes:
        scale: One element per column, as `bias`.
        rms: No mean is taken off (RMSNormalization).
    """

    z: Value
    scale: Value
    bias: Value | None
    epsilon: float
    rms: bool

    @property
    def defines(self) -> dict[str, Define]:
        """The macros of common/normalize_row.clh."""
        return {"NORM": 1, "RMS": int(self.rms), "BIAS": int(self.bias is not None)}

    @property
    def args(self) -> dict[str, Any]:
        """What NORM_INPUTS declares."""
        values = dict(z=self.z, scale=self.scale, **optional(bias=self.bias))
        return {**values, "epsilon": self.epsilon}


def norm_flops(rows: int, n: int) -> int:
    """Floating-point operations of a normalisation of rows of n elements."""
    return 8 * rows * n
