"""3 x 3 convolution by Winograd's F(4 x 4, 3 x 3) on CPUs.

A tile of 4 x 4 outputs takes 36 multiplications per channel instead of 144: windows and weights
are transformed, multiplied as 36 matrices, and the products are transformed back.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import ClassVar

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.cost import rates_of
from clrt.kernels.gemm_tile import panel_width, select_tile
from clrt.kernels.panel_layout import Panels
from clrt.kernels.spec import Launch, PackedWeight
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.tuning_records import device_thresholds
from clrt.kernels.variant import Lowering, reject_but_float32
from clrt.ops.conv.channels_last_gemm import launch_rows, product_of, zeros
from clrt.ops.conv.conv import FusedConv
from clrt.ops.pointwise.fused import symbolic_shape
from clrt.util.math import ceil_div, round_up

# Side of a tile of outputs, side of the window, and elements of a transformed tile.
_SIDE, _WINDOW, _PLANES = 4, 3, 36


class WinogradPartition(Thresholds):
    """Thresholds that divide the tiles of a Winograd convolution into blocks and work-groups.

    Weights are transformed at load (`block_kib`, `least_tiles`), or, for few tiles, in each run by
    each block (`few_tiles`, `weights_kib`).
    """

    block_kib: int = tunable(
        512,
        "KiB",
        "Maximum size of the transformed windows and products of a block of tiles, so that "
        "they stay in a core's L2 cache. For weights transformed at load.",
    )
    least_tiles: int = tunable(
        24,
        "tiles",
        "Lower bound of the maximum block size that block_kib gives, since each block "
        "rereads the weights. For weights transformed at load.",
    )
    groups: int = tunable(
        2, "work-groups per core", "Maximum; each reuses its own scratch memory for many blocks."
    )
    few_tiles: int = tunable(32, "tiles", "Maximum per block. For weights transformed in each run.")
    weights_kib: int = tunable(
        160,
        "KiB",
        "Maximum size of transformed weights at a time, so that they stay in the L2 cache. "
        "For weights transformed in each run.",
    )

    group: ClassVar = "winograd_shares"


class WinogradCosts(Thresholds):
    """Cost model of Winograd convolutions, and when they transform weights in each run.

    For few tiles, weights are transformed as they are read, in each run: reading them from memory
    dominates, and before the transform they have a fourth of the bytes.
    """

    side: int = tunable(32, "elements", "Assumed of an image axis that the model does not fix.")
    cached: int = tunable(
        4,
        "times the memory bandwidth",
        "Estimated for the transforms, which work in the caches.",
    )
    transform: int = tunable(
        100,
        "multiplications",
        "Estimated time of the transform of the weights of one channel and output channel.",
    )
    few_tiles: int = tunable(
        64, "tiles", "Fewer than these let the weights be transformed in each run."
    )
    much_kib: int = tunable(
        2048, "KiB", "Minimum size of the transformed weights for a transform in each run."
    )
    share_of_tiles: int = tunable(
        32, "tiles", "Per core if weights are transformed in each run: all cores must have work."
    )
    share_of_maps: int = tunable(
        64, "output channels", "Per core if weights are transformed in each run."
    )

    group: ClassVar = "winograd_costs"


WINOGRAD = tuned(
    "winograd_cpu",
    {"T_MR": (4, 6, 8, 12), "T_NV": (1, 2, 3, 4), "T_VW": (4, 8, 16)},
    T_MR=4,
    T_NV=3,
    T_VW=8,
    T_KU=2,
)

# Squares of the interpolation points besides 0 and infinity: +-NEAR and +-FAR of the kernel.
_NEAR, _FAR = 0.5, 2.0


def _transform_of_weights() -> Array:
    """Returns the matrix G `[6, 3]` that transforms 3 x 3 weights w to G w G' (G' transposed).

    Each row but the last has 1, r, r^2 for an interpolation point r, divided by the Lagrange
    denominator of r. The last row, (0, 0, 1), is that of the point at infinity.
    """
    rows = [[1 / (_NEAR * _FAR), 0, 0]]
    for square, other in ((_NEAR, _FAR), (_FAR, _NEAR)):
        for r in (square**0.5, -(square**0.5)):
            rows.append([p / (2 * square * (square - other)) for p in (1, r, square)])
    return np.array([*rows, [0, 0, 1]])


def _packed(weights: Value, panels: Panels) -> PackedWeight:
    """Transforms weights `[N, C, 3, 3]` to 36 matrices `[C, N]` and packs each in panels.

    N is the number of output channels, C of input channels.
    """

    def pack(array: Array) -> Array:
        g = _transform_of_weights()
        planes = np.einsum("ih,nchw,jw->ijcn", g, array.astype(np.float64), g, optimize=True)
        return panels.pack(planes.reshape(_PLANES, *planes.shape[2:]).astype(array.dtype))

    nbytes = _PLANES * panels.k * round_up(panels.n, panels.width) * weights.dtype.itemsize
    return PackedWeight(weights, f"winograd{_SIDE}:{panels.layout}", pack, nbytes)


def emit_winograd(node: Node, ctx: Lowering) -> list[Launch]:
    """Emits one launch, whose work-items each compute blocks of tiles; [] for an empty product.

    A work-item transforms the windows of a block, multiplies them by the transformed weights, and
    transforms the products back.
    """
    product, x, w, y = product_of(node), node.arg(0), node.arg(1), node.output
    if product.is_empty:
        return []
    tunables = select_tile(WINOGRAD, product, ctx)
    panel, height = panel_width(tunables), tunables["T_MR"]
    channels, maps = w.dims[1], w.dims[0]
    deep, panels = round_up(channels, tunables["T_VW"]), ceil_div(maps, panel)
    rows_of_tiles, columns_of_tiles = (ceil_div(d, _SIDE) for d in y.dims[1:3])
    tiles = x.dims[0] * rows_of_tiles * columns_of_tiles
    units, shares = ctx.caps.compute_units, ctx.thresholds(WinogradPartition)
    if few := _has_few_tiles(node, ctx.caps, device_thresholds(WinogradCosts, ctx.caps)):
        block = height * _rows_of_few(ceil_div(tiles, height), height, units, shares)
        depth = clamp((shares.weights_kib << 10) // (4 * _PLANES * panel), 1, channels)
        weights = Panels(_WINDOW**2 * channels, maps, panel, True).of(w)
    else:
        across = deep + panels * panel
        block = height * _rows_of_many(ceil_div(tiles, height), height, across, units, shares)
        depth, weights = 0, _packed(w, Panels(channels, maps, panel, False))
    blocks = ceil_div(tiles, block)
    # With few blocks the output channels are split, too; each part transforms the windows again.
    span = ceil_div(panels, clamp(units // blocks, 1, panels))
    items = blocks * ceil_div(panels, span)
    groups = clamp(items, 1, units * shares.groups)
    slot = _PLANES * (block * (deep + span * panel) + depth * panel)
    launches = launch_rows(
        node,
        product,
        WINOGRAD,
        {**tunables, "S_FEW_TILES": int(few)},
        groups,
        w=weights,
        zeros=zeros(deep),
        room=ctx.scratch(groups * slot),
        slot=slot,
        C=channels,
        tiles=tiles,
        tiles1=rows_of_tiles,
        tiles2=columns_of_tiles,
        block=block,
        span=span,
        depth=depth,
    )
    flops = product.flops * _PLANES // (_SIDE * _WINDOW) ** 2
    return [replace(x, flops=flops) for x in launches]


def _rows_of_many(
    rows: int, height: int, across: int, units: int, shares: WinogradPartition
) -> int:
    """Returns the size of a block, in rows of `height` tiles, if weights are transformed at load.

    Args:
        rows: Number of rows of `height` tiles in all.
        height: Tiles per row, the tunable T_MR.
        across: Scratch elements per tile for each of the 36 products: input channels of the window
            plus output channels, both padded.
        units: Number of cores.
        shares: Thresholds of the partition.
    """
    max_rows = max(
        (shares.block_kib << 10) // (4 * _PLANES * across * height),
        ceil_div(shares.least_tiles, height),
    )
    return ceil_div(rows, units * ceil_div(rows, units * max_rows))


def _rows_of_few(rows: int, height: int, units: int, shares: WinogradPartition) -> int:
    """Returns the size of a block, in rows of `height` tiles, if each block transforms the weights.

    The number of blocks is the minimum, rounded up to a multiple of the cores unless there are
    fewer blocks than cores.

    Args:
        rows: Number of rows of `height` tiles in all.
        height: Tiles per row, the tunable T_MR.
        units: Number of cores.
        shares: Thresholds of the partition.
    """
    blocks = ceil_div(rows, ceil_div(shares.few_tiles, height))
    return ceil_div(rows, blocks if blocks < units else round_up(blocks, units))


def reject_winograd(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why Winograd does not apply to a convolution or is slower; None to use it."""
    op, w = node.op_as(FusedConv), node.arg(1)
    window = op.window(w.shape)
    if window is None or op.group != 1 or w.dims[2:] != (_WINDOW, _WINDOW):
        return "its windows are not 3 x 3 over all channels"
    if any(s != 1 for s in (*window.steps(op.strides), *window.steps(op.dilations))):
        return "its windows have steps"
    if 0 in w.dims:
        return "there are no weights"
    return reject_but_float32(node, caps) or _reject_costly(node, caps)


def _reject_costly(node: Node, caps: DeviceCaps) -> str | None:
    maps, channels = node.arg(1).dims[:2]
    costs, rates = device_thresholds(WinogradCosts, caps), rates_of(caps)
    tiles, positions = _tile_counts(node, costs)
    seconds = 2 * channels * maps / rates.flops
    weights_bytes = 4 * _PLANES * channels * maps
    tiles_bytes = 8 * _PLANES * tiles * (channels + maps) / costs.cached
    direct = _WINDOW**2 * positions * seconds
    if _has_few_tiles(node, caps, costs):  # the weights are read as a direct sum reads them
        transformed = (_PLANES * tiles + costs.transform) * seconds
    else:
        transformed = max(_PLANES * tiles * seconds, weights_bytes / rates.nbytes)
    transformed += tiles_bytes / rates.nbytes
    return None if transformed < direct else "its transforms would take more than they save"


def _has_few_tiles(node: Node, caps: DeviceCaps, costs: WinogradCosts) -> bool:
    """Returns whether the weights of a convolution are transformed in each run, not at load.

    That is so if there are few tiles, the transformed weights are large, and the tiles and output
    channels suffice for all cores.
    """
    (tiles, _), (maps, channels) = _tile_counts(node, costs), node.arg(1).dims[:2]
    shares = ceil_div(tiles, costs.share_of_tiles) * ceil_div(maps, costs.share_of_maps)
    is_much = 4 * _PLANES * channels * maps >= costs.much_kib << 10
    return tiles < costs.few_tiles and is_much and shares >= caps.compute_units


def _tile_counts(node: Node, costs: WinogradCosts) -> tuple[int, int]:
    """Returns the numbers of tiles and of positions in the output images of a convolution.

    Sizes that the model does not fix are estimated: `costs.side` per axis, one image. Sizes of a
    call are ignored, so that all calls use the same kernel.
    """
    images, *sides = symbolic_shape(node.output)[:3]
    known = [d if isinstance(d, int) else costs.side for d in sides]
    count = images if isinstance(images, int) else 1
    return count * prod(ceil_div(d, _SIDE) for d in known), count * prod(known)
