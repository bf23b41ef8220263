"""Integer functions of sizes that plan templates compute as one formula.

A stored template names them by module and name, so importing this module must stay cheap.
"""

from __future__ import annotations

from typing import NamedTuple

from clrt.ir.symbolic_trace import pure
from clrt.util.math import ceil_div

# Maximum number of heights that `balanced_height` and `balanced_share` try: a damaged stored plan
# may ask for any. Default thresholds ask for 16.
_MAX_HEIGHT = 1 << 12


@pure
def balanced_height(
    blocks: int, panels: int, most: int, units: int, start: int, spared: int
) -> int:
    """Returns the row blocks per stripe (the rows of a work-group) that balance cores best.

    Args:
        blocks: Row blocks of the result.
        panels: Panels of B times batches.
        most: Maximum number of row blocks per stripe; `_MAX_HEIGHT` if it exceeds that.
        units: Compute units of the device.
        start: `GemmPartitionThresholds.start_percent`.
        spared: `GemmPartitionThresholds.spared_percent`.
    """

    def tiles_per_core(height: int) -> float:
        stripes = ceil_div(blocks, height)
        missing = height - blocks / stripes
        return ceil_div(stripes * panels, units) * (height - spared / 100 * missing + start / 100)

    most = min(most, blocks, _MAX_HEIGHT)
    return min(range(most, ceil_div(most, 2) - 1, -1), key=tiles_per_core)


class MatrixExtent(NamedTuple):
    """Part of a matrix that a work-group computes: rows, and panels of columns."""

    rows: int
    panels: int


@pure
def balanced_share(
    rows: int, panels: int, batches: int, units: int, target: int, tile: int, tiles: int
) -> MatrixExtent:
    """Returns the rows and panels per work-group with which all cores finish together.

    Args:
        rows: Rows of each matrix.
        panels: Panels (blocks of columns) of each matrix.
        batches: Number of matrices.
        units: Compute units of the device.
        target: Number of work-groups wanted, if the rows alone give fewer.
        tile: Rows of a tile.
        tiles: Maximum number of tiles per work-group.
    """
    best = []
    for height in range(tile, tile * min(tiles, _MAX_HEIGHT) + 1, tile):
        stripes = ceil_div(rows, height) * batches
        spans = max(1, min(panels, ceil_div(target, stripes)))
        width = ceil_div(panels, spans)
        groups = stripes * ceil_div(panels, width)
        cost = ceil_div(groups, units) * min(height, rows) * width
        best.append((cost, -height, width))
    _, height, width = min(best)
    return MatrixExtent(min(-height, rows), width)


def slice_indices(dim: int, start: int, end: int, step: int) -> range:
    """Returns the indices that `start:end:step` selects of an axis of `dim` elements.

    The indices are those of a Python slice, with one exception: for step < 0, a start before the
    first element is clamped to index 0, where Python selects none. ONNX Runtime clamps like this,
    as ONNX specifies; ONNX's reference evaluator follows Python.
    """
    first, stop, _ = slice(start, end, step).indices(dim)
    return range(max(first, 0) if dim else first, stop, step)


@pure
def first_taken(dim: int, start: int, end: int, step: int) -> int:
    """Returns the first index that `start:end:step` selects of an axis of `dim` elements."""
    return slice_indices(dim, start, end, step).start


@pure
def count_taken(dim: int, start: int, end: int, step: int) -> int:
    """Returns the number of indices that `start:end:step` selects of an axis of `dim` elements."""
    return len(slice_indices(dim, start, end, step))


@pure
def log2(power: int) -> int:
    """Returns the logarithm of a power of two."""
    return power.bit_length() - 1


@pure
def largest(*numbers: int) -> int:
    """Returns the maximum of one or more numbers."""
    return max(numbers)


@pure
def excess(number: int, limit: int) -> int:
    """Returns by how much `number` exceeds `limit`; 0 if it does not."""
    return max(number - limit, 0)


@pure  # a trace records one guard instead of one per comparison
def grows(stored_bytes: int, made_bytes: int, min_bytes: int) -> int:
    """Returns 1 if `made_bytes` exceed `stored_bytes`, which are at least `min_bytes`; else 0."""
    return int(made_bytes > stored_bytes >= min_bytes)
