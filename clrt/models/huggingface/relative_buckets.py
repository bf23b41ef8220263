"""Buckets of distances, as T5 and MPNet have them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def relative_buckets(
    distances: NDArray[np.int64], buckets: int, reach: int, both: bool = True
) -> NDArray[np.int64]:
    """The bucket of each distance (key position - query position).

    Half of the buckets of a side hold one distance each, the others ranges that grow
    logarithmically up to `reach`. It is computed once and here: logarithms round differently on
    different devices, and would move distances at the borders to another bucket.

    Args:
        distances: Whole numbers of either sign.
        buckets: How many there are.
        reach: From which distance on all are in the last bucket.
        both: Half of the buckets are for keys behind the query; else there are none of these, and
            all are for those before it.

    Returns:
        Numbers from 0 to `buckets` - 1.

    Source: Raffel et al., T5 (2019); transformers' `_relative_position_bucket`.
    """
    own = buckets // 2 if both else buckets
    exact = own // 2
    steps = np.abs(distances) if both else np.maximum(-distances, 0)
    ratio = np.log(np.maximum(steps, 1).astype(np.float32) / np.float32(exact))
    growth = ratio / np.float32(math.log(reach / exact)) * np.float32(own - exact)
    ranged = np.minimum(exact + growth.astype(np.int64), own - 1)
    found = np.where(steps < exact, steps, ranged)
    return np.where(distances > 0, found + own, found) if both else found
