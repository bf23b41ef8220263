"""Maximum difference between a result and the result of a reference implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def max_difference(actual: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    """Returns the largest difference between two arrays, absolute and relative.

    The relative difference is the absolute difference divided by the largest finite absolute value
    of `expected`; not divided if that is 0.

    Equal infinities, and NaN in both arrays, count as no difference. Both differences are inf if
    the shapes differ, or if an element is infinite or NaN in only one array, or infinite with
    different signs.
    """
    if actual.shape != expected.shape:
        return np.inf, np.inf
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.where((a == e) | (np.isnan(a) & np.isnan(e)), 0.0, np.abs(a - e))
    largest = float(np.nan_to_num(gaps, nan=np.inf, posinf=np.inf).max(initial=0.0))
    scale = float(np.abs(e[np.isfinite(e)]).max(initial=0.0))
    return largest, largest / (scale or 1.0)
