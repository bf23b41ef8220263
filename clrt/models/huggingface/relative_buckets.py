"""Relative position buckets of T5 and MPNet."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def relative_buckets(
    distances: NDArray[np.int64], buckets: int, reach: int, both: bool = True
) -> NDArray[np.int64]:
    """Returns the bucket of each relative position (key position - query position).

    For keys on each side of the query, half of the buckets hold one distance each, the others hold
    ranges that grow logarithmically up to `reach`. Buckets are computed on the host only: devices
    round logarithms differently, which would move distances at the borders to another bucket.

    Args:
        distances: Key position - query position.
        buckets: Number of buckets.
        reach: Minimum distance of the last bucket, which also holds all longer distances.
        both: Whether half of the buckets are for keys after the query (encoders). If not, all
            buckets are for keys before the query, and keys after it are in bucket 0.

    Returns:
        Bucket indices, 0 to `buckets` - 1, in the shape of `distances`.

    Source: Raffel et al., T5 (2019); transformers' `_relative_position_bucket`.
    """
    per_side = buckets // 2 if both else buckets
    exact = per_side // 2
    steps = np.abs(distances) if both else np.maximum(-distances, 0)
    ratio = np.log(np.maximum(steps, 1).astype(np.float32) / np.float32(exact))
    growth = ratio / np.float32(math.log(reach / exact)) * np.float32(per_side - exact)
    ranged = np.minimum(exact + growth.astype(np.int64), per_side - 1)
    bucket = np.where(steps < exact, steps, ranged)
    return np.where(distances > 0, bucket + per_side, bucket) if both else bucket
