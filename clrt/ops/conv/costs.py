"""Cost estimates that choose between direct and GEMM convolution if groups have one input channel.

All costs are proportional to the number of positions, so that the choice depends on channels and
window only, not on the image size. Measured on Zen 4 with Intel's runtime: 1 -> 258 channels with
256 taps take 2.0 ms directly and 0.2 ms as a GEMM; 144 -> 144 with 3 x 3 taps take 0.9 and 3.8 ms.
With 4 to 8 output channels per input channel, the direct kernel and the GEMM take equally long.
"""

from __future__ import annotations

from math import prod

from clrt.ir.graph import Node
from clrt.kernels.cost import Efficiency, WorkEstimate
from clrt.util.math import round_up

DIRECT_CPU = Efficiency(0.04, 0.5)
DIRECT_GPU = Efficiency(0.15, 0.5)
DIRECT_ANY = Efficiency(0.02, 0.5)
# Rows of a GEMM tile, to which output channels are padded.
_TILE_ROWS = 4
# Bytes moved per float32 element of the im2col matrix: written, packed or reread, and read by the
# GEMM.
_COLUMN_BYTES = 3 * 4
# Rows of a GPU tile, and elements of K per slice, to which rows and K are padded.
_GPU_ROWS, _GPU_DEPTH = 32, 16


def direct_work(node: Node) -> WorkEstimate:
    """Returns the estimated work of a convolution by direct kernels, which need no im2col."""
    return WorkEstimate(2 * prod(node.output.dims) * prod(node.arg(1).dims[1:]))


def unfolded_work(node: Node) -> WorkEstimate:
    """Returns the estimated work of a convolution by im2col and a GEMM.

    The estimate counts the operations on padded output channels, and the bytes of the im2col
    columns.
    """
    columns, maps, depth = _product(node)
    return WorkEstimate(
        2 * round_up(maps, _TILE_ROWS) * depth * columns, _COLUMN_BYTES * depth * columns
    )


def gathered_work(node: Node) -> WorkEstimate:
    """Returns the estimated work of a convolution by the GPU GEMM that gathers im2col columns."""
    columns, maps, depth = _product(node)
    return WorkEstimate(2 * round_up(maps, _GPU_ROWS) * round_up(depth, _GPU_DEPTH) * columns)


def _product(node: Node) -> tuple[int, int, int]:
    """Returns the sizes of a convolution's GEMM.

    Returns:
        The number of columns, summed over all groups and images; the rows of a group (its output
        channels); the summed axis K of a group (its input channels times window elements).
    """
    x, w, y = node.arg(0).dims, node.arg(1).dims, node.output.dims
    groups = max(x[1] // max(w[1], 1), 1)
    return groups * y[0] * prod(y[2:]), w[0] // groups, prod(w[1:])
