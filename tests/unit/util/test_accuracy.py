"""Maximum difference of arrays, non-finite elements included."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.util.accuracy import max_difference

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("actual", "expected", "apart"),
    [
        ([1.0, INF, NAN], [1.5, INF, NAN], (0.5, 0.5 / 1.5)),
        ([1.0, INF], [1.0, -INF], (INF, INF)),
        ([NAN], [0.0], (INF, INF)),
        ([1.0], [NAN], (INF, INF)),
        ([0.5], [0.0], (0.5, 0.5)),
        ([[]], [[]], (0.0, 0.0)),
        ([0.0, 0.0], [[0.0], [0.0]], (INF, INF)),
    ],
)
def test_max_difference_handles_nonfinite_values(
    actual: list[float], expected: list[float], apart: tuple[float, float]
) -> None:
    assert max_difference(np.array(actual), np.array(expected)) == apart
