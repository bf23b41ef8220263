"""Cost estimates that choose between direct and GEMM convolution if groups have one input channel.

All costs are proportional to the number of positions, so that the choice depends on channels and
window only, not on the image size. Measured on Zen 4 with Intel's runtime: 1 -> 258 channels with
256 taps take 2.0 ms directly and 0.2 ms as a GEMM; 144 -> 144 with 3 x 3 taps take 0.9 and 3.8 ms.
With 4 to 8 output channels per input channel, the direct kernel and the GEMM take equally long.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Node
from clrt.kernels.cost import Efficiency, WorkEstimate
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuning_records import device_thresholds
from clrt.util.math import round_up


class DirectCpuEfficiency(Efficiency):
    """Fractions of a CPU's peak rates that the direct convolution for CPUs reaches."""

    compute: int = tunable(4, "percent", "Of the rate of floating-point operations.")

    group: ClassVar = "direct_conv_cpu"


class DirectGpuEfficiency(Efficiency):
    """Fractions of a GPU's peak rates that the direct convolution for GPUs reaches."""

    compute: int = tunable(15, "percent", "Of the rate of floating-point operations.")

    group: ClassVar = "direct_conv_gpu"


class DirectEfficiency(Efficiency):
    """Fractions of a device's peak rates that the direct convolution for any device reaches."""

    compute: int = tunable(2, "percent", "Of the rate of floating-point operations.")

    group: ClassVar = "direct_conv"


class ConvCosts(Thresholds):
    """Cost model of convolutions by GEMM."""

    tile_rows: int = tunable(
        4, "rows", "Of a GEMM tile on CPUs, to a multiple of which output channels are padded."
    )
    column_bytes: int = tunable(
        12,
        "bytes",
        "Moved per float32 element of the im2col matrix: written, packed or reread, and read by "
        "the GEMM.",
    )
    gpu_rows: int = tunable(
        32, "rows", "Of a GEMM tile on GPUs, to a multiple of which output channels are padded."
    )
    gpu_depth: int = tunable(
        16, "elements of K", "Per slice on GPUs, to a multiple of which K is padded."
    )

    group: ClassVar = "conv_costs"


def direct_work(node: Node, caps: DeviceCaps) -> WorkEstimate:
    """Returns the estimated work of a convolution by direct kernels, which need no im2col."""
    return WorkEstimate(2 * prod(node.output.dims) * prod(node.arg(1).dims[1:]))


def unfolded_work(node: Node, caps: DeviceCaps) -> WorkEstimate:
    """Returns the estimated work of a convolution by im2col and a GEMM.

    The estimate counts the operations on padded output channels, and the bytes of the im2col
    columns.
    """
    costs = device_thresholds(ConvCosts, caps)
    columns, maps, depth = _product(node)
    return WorkEstimate(
        2 * round_up(maps, costs.tile_rows) * depth * columns, costs.column_bytes * depth * columns
    )


def gathered_work(node: Node, caps: DeviceCaps) -> WorkEstimate:
    """Returns the estimated work of a convolution by the GPU GEMM that gathers im2col columns."""
    costs = device_thresholds(ConvCosts, caps)
    columns, maps, depth = _product(node)
    return WorkEstimate(
        2 * round_up(maps, costs.gpu_rows) * round_up(depth, costs.gpu_depth) * columns
    )


def _product(node: Node) -> tuple[int, int, int]:
    """Returns the sizes of a convolution's GEMM.

    Returns:
        The number of columns, summed over all groups and images; the rows of a group (its output
        channels); the summed axis K of a group (its input channels times window elements).
    """
    x, w, y = node.arg(0).dims, node.arg(1).dims, node.output.dims
    groups = max(x[1] // max(w[1], 1), 1)
    return groups * y[0] * prod(y[2:]), w[0] // groups, prod(w[1:])
