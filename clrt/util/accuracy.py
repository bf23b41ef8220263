"""The difference between results and those of another implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def max_difference(actual: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    """The largest absolute difference, and its ratio to the largest finite element expected.

    Infinities and NaN at the same places are equal. Infinities and NaN elsewhere, and other shapes,
    give inf. If all expected elements are 0, the ratio is the difference.
    """
    if actual.shape != expected.shape:
        return np.inf, np.inf
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.where((a == e) | (np.isnan(a) & np.isnan(e)), 0.0, np.abs(a - e))
    largest = float(np.nan_to_num(gaps, nan=np.inf, posinf=np.inf).max(initial=0.0))
    scale = float(np.abs(e[np.isfinite(e)]).max(initial=0.0))
    return largest, largest / (scale or 1.0)
