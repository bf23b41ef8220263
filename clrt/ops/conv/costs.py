"""What the ways to run a convolution cost, where the window has one input channel to a group.

Both ways grow with the positions alone: the choice is that of channels and window, whatever the
size of an image. Measured on Zen 4, on Intel's runtime: 1 -> 258 channels by 256 taps takes 2.0 ms
as depthwise and 0.2 as a product, 144 -> 144 by 3 x 3 0.9 and 3.8. From 4 to 8 maps to a channel
both take as long.
"""

from __future__ import annotations

from math import prod

from clrt.ir.graph import Node
from clrt.kernels.cost import Speed, Work
from clrt.kernels.spec import round_up

DIRECT_CPU = Speed(0.04, 0.5)
DIRECT_GPU = Speed(0.15, 0.5)
DIRECT_ANY = Speed(0.02, 0.5)
_TILE_ROWS = 4
_COLUMN_BYTES = 3 * 4  # written, packed or read again, and read by the product


def direct_work(node: Node) -> Work:
    """Of the kernels that unfold nothing."""
    return Work(2 * prod(node.output.dims) * prod(node.arg(1).dims[1:]))


def unfolded_work(node: Node) -> Work:
    """Of a product over columns: rows fill tiles, and the columns go through memory."""
    x, w, y = node.arg(0).dims, node.arg(1).dims, node.output.dims
    groups = max(x[1] // max(w[1], 1), 1)
    columns = groups * prod(w[1:]) * y[0] * prod(y[2:])
    rows = round_up(w[0] // groups, _TILE_ROWS)
    return Work(2 * rows * columns, _COLUMN_BYTES * columns)
