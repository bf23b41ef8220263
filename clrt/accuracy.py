"""How far results are from those of another implementation."""

from __future__ import annotations

import numpy as np

from clrt.ir.op import Array


def difference(actual: Array, expected: Array) -> tuple[float, float]:
    """The largest absolute difference, and that over the largest finite element expected.

    Infinities and NaN at the same places are equal; elsewhere, and in other shapes, it is inf. With
    nothing expected but zeros the second number is the first.
    """
    if actual.shape != expected.shape:
        return np.inf, np.inf
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.where((a == e) | (np.isnan(a) & np.isnan(e)), 0.0, np.abs(a - e))
    largest = float(np.nan_to_num(gaps, nan=np.inf, posinf=np.inf).max(initial=0.0))
    scale = float(np.abs(e[np.isfinite(e)]).max(initial=0.0))
    return largest, largest / (scale or 1.0)
