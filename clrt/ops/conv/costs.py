"""What the ways to run a convolution cost, where the window has one input channel to a group.

All ways grow with the positions alone: the choice is that of channels and window, whatever the
size of an image. Measured on Zen 4, on Intel's runtime: 1 -> 258 channels by 256 taps takes 2.0 ms
as depthwise and 0.2 as a product, 144 -> 144 by 3 x 3 0.9 and 3.8. From 4 to 8 maps to a channel
both take as long.
"""

from __future__ import annotations

from math import prod

from clrt.ir.graph import Node
from clrt.kernels.cost import Efficiency, WorkEstimate
from clrt.util.math import round_up

DIRECT_CPU = Efficiency(0.04, 0.5)
DIRECT_GPU = Efficiency(0.15, 0.5)
DIRECT_ANY = Efficiency(0.02, 0.5)
_TILE_ROWS = 4
_COLUMN_BYTES = 3 * 4  # written, packed or read again, and read by the product
# Of a tile on a GPU, and of its slices.
_GPU_ROWS, _GPU_DEPTH = 32, 16


def direct_work(node: Node) -> WorkEstimate:
    """Of the kernels that unfold nothing."""
    return WorkEstimate(2 * prod(node.output.dims) * prod(node.arg(1).dims[1:]))


def unfolded_work(node: Node) -> WorkEstimate:
    """Of a product over columns: rows fill tiles, and the columns go through memory."""
    columns, maps, depth = _product(node)
    return WorkEstimate(
        2 * round_up(maps, _TILE_ROWS) * depth * columns, _COLUMN_BYTES * depth * columns
    )


def gathered_work(node: Node) -> WorkEstimate:
    """Of a product whose columns a GPU reads from the images."""
    columns, maps, depth = _product(node)
    return WorkEstimate(2 * round_up(maps, _GPU_ROWS) * round_up(depth, _GPU_DEPTH) * columns)


def _product(node: Node) -> tuple[int, int, int]:
    """Columns of all groups and images, and rows and depth of a product."""
    x, w, y = node.arg(0).dims, node.arg(1).dims, node.output.dims
    groups = max(x[1] // max(w[1], 1), 1)
    return groups * y[0] * prod(y[2:]), w[0] // groups, prod(w[1:])
