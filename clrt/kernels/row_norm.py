"""Normalization of the rows of a result, fused into the CPU launch that computes the rows."""

from __future__ import annotations

from typing import Any

from clrt.ir.cl_code import Define
from clrt.ir.graph import Value
from clrt.kernels.spec import optional
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class RowNorm:
    """LayerNormalization or RMSNormalization of the rows of a matrix y into z.

    Attributes:
        z: The normalized matrix.
        scale: Factor per column.
        bias: Summand per column; None for 0.
        epsilon: Number added to the variance, or to the mean square if `rms`.
        rms: True for RMSNormalization: the mean is not subtracted.
    """

    z: Value
    scale: Value
    bias: Value | None
    epsilon: float
    rms: bool

    @property
    def defines(self) -> dict[str, Define]:
        """Macros that select the normalization in kernels: common/normalize_row.clh."""
        return {"FUSE_NORM": 1, "RMS": int(self.rms), "BIAS": int(self.bias is not None)}

    @property
    def args(self) -> dict[str, Any]:
        """Kernel arguments of the macro NORM_INPUTS."""
        values = dict(z=self.z, scale=self.scale, **optional(bias=self.bias))
        return {**values, "epsilon": self.epsilon}


def norm_flops(rows: int, n: int) -> int:
    """Returns the floating-point operations of normalizing `rows` rows of `n` elements."""
    return 8 * rows * n
