"""Convolution on GPUs as an implicit GEMM: the kernel reads windows directly from the images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, ClassVar, NamedTuple

from clrt.device.requires import Requires
from clrt.ir.cl_code import Define
from clrt.ir.graph import Value
from clrt.ir.symbolic_trace import pure
from clrt.kernels.gemm_gpu import (
    SIDE,
    GpuGemmSplits,
    join_launch,
    tile_bytes,
    tile_cycles,
    tile_defines,
)
from clrt.kernels.gemm_problem import Epilogue, GemmProblem
from clrt.kernels.panel_layout import Panels
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch
from clrt.kernels.strided import contiguous_strides, copy_launches
from clrt.kernels.thresholds import Thresholds, Tunable, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

# T_RM, T_RN and T_TK mean the same as in gemm_gpu and are powers of two. T_SIDE: work-items along
# each side of a work-group; tests on simulators use fewer.
CONV = tuned(
    "conv_gpu",
    {"T_RM": (4, 8), "T_RN": (4, 8), "T_TK": (8, 16)},
    T_RM=8,
    T_RN=8,
    T_TK=16,
    T_SIDE=Tunable(SIDE, "work-items", "Side of a work-group, which the tile's loads assume."),
)
# Values of the macro S_WINDOW. IN_PLACE: a window is one element (1 x 1 convolution). BY_TAP: K is
# [tap][channel]. BY_CHANNEL: K is [channel][tap].
IN_PLACE, BY_TAP, BY_CHANNEL = range(3)
# Bytes of local memory per index of K in a slice, for its position in the window.
_K_INDEX_BYTES = 2 * 16
# Numbers of K splits to choose from.
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)


class ConvGpuCosts(Thresholds):
    """Cost model of the tiles and splits of K of a convolution on GPUs."""

    by_tap_percent: int = tunable(
        125,
        "percent",
        "Maximum slices with K in the order [tap][channel], of those with [channel][tap], for "
        "which it is used: its work-items spend less time on computing addresses.",
    )
    tile_side: int = tunable(
        2, "rows or columns", "Minimum per work-item along the longer side of the smallest tile."
    )
    split_slices: int = tunable(
        16,
        "slices of K",
        "Minimum for which K is split: with fewer, summing the splits costs more than it saves.",
    )
    wait: int = tunable(
        300, "cycles", "Estimated latency of a work-item until a slice arrives from a cache."
    )
    moving: int = tunable(
        180, "cycles", "Estimated time of a work-item to read or write one element of memory."
    )
    ends: int = tunable(
        2, "slices", "Estimated time to start and end a work-group, in the time of a slice."
    )

    group: ClassVar = "conv_gpu_costs"


@dataclass(frozen=True)
class ImageWindows:
    """Windows of a convolution's images, the implicit B of its GEMM.

    Attributes:
        channels: Input channels per group.
        taps: Elements of a window per channel.
        plane: Elements per channel of an image.
        geometry: Window arguments of the kernel (sizes, strides, dilations, padding); empty if each
            window is a single element of the image, at the position of the output element.
    """

    channels: int
    taps: int
    plane: int
    geometry: Mapping[str, int]

    def order(self, depth: int, percent: int) -> int:
        """Returns the order of window elements along K, the summed axis, as the macro S_WINDOW.

        Args:
            depth: Maximum number of elements of K per slice.
            percent: `ConvGpuCosts.by_tap_percent`.

        Returns:
            IN_PLACE if a window is one element per channel, or if K is empty; else BY_TAP for
            [tap][channel] or BY_CHANNEL for [channel][tap].
        """
        if not self.geometry or not self.channels * self.taps:
            return IN_PLACE
        by_tap, by_channel = self.slices(BY_TAP, depth), self.slices(BY_CHANNEL, depth)
        return BY_TAP if 100 * by_tap <= percent * by_channel else BY_CHANNEL

    def slices(self, order: int, depth: int) -> int:
        """Returns the number of slices that K, the summed axis, is divided into.

        Args:
            order: Order of window elements along K: IN_PLACE, BY_TAP or BY_CHANNEL (see `order`).
            depth: Maximum number of elements of K per slice.
        """
        if order == BY_TAP:
            return self.taps * ceil_div(self.channels, depth)
        return ceil_div(self.taps * self.channels, depth)


def emit_windows(product: GemmProblem, windows: ImageWindows, ctx: Lowering) -> list[Launch]:
    """Returns the launches of a convolution as an implicit GEMM, without im2col buffers.

    There is a launch of each kernel at every shape, but only the launch of the fastest kernel has
    work-groups. So a new shape needs no compilation.

    Args:
        product: The GEMM, batched by images and groups. A is the weights, [output channels, input
            channels per group, window …]; B is the images.
        windows: Windows of the images.

    Raises:
        UnsupportedError: The epilogue needs other types than float32, or the device has too little
            local memory.
    """
    product.epilogue.check_vectors()
    if product.is_empty:
        return []
    tunables, costs = ctx.tunables(CONV), ctx.thresholds(ConvGpuCosts)
    depth, (images, groups) = tunables["T_TK"], product.batch
    tiles, side = _fitting_tiles(product.m, tunables, costs, ctx), tunables["T_SIDE"]
    order = windows.order(depth, costs.by_tap_percent)
    sliced = _Sliced(windows, order, depth, windows.slices(order, depth), product.k, side)
    columns = images * product.n
    moved = product.batches * (windows.channels * windows.plane + product.m * product.n)
    moved += groups * product.m * product.k
    sizes = product.m, columns, groups, sliced.count, depth, moved, ctx.caps.cores
    join_cycles = ctx.thresholds(GpuGemmSplits).join_cycles
    chosen, splits = best_split(*sizes, *next(iter(tiles)), costs=costs, join_cycles=join_cycles)
    launches, weights = sliced.weights(product, ctx)
    product = replace(product, a=replace(product.a, buffer=weights))
    launches += sliced.launches(product, tiles, 1, chosen if splits == 1 else None)
    # The number of slices does not depend on sizes that vary from call to call.
    if sliced.count >= costs.split_slices:
        sums = ctx.scratch(splits * product.batches * product.m * product.n if splits > 1 else 1)
        partial = replace(product, y=sums, epilogue=Epilogue())
        launches += sliced.launches(partial, tiles, splits, None if splits == 1 else chosen)
        launches.append(join_launch(product, sums, splits))
    return launches


def _fitting_tiles(
    m: int, tunables: Mapping[str, int], costs: ConvGpuCosts, ctx: Lowering
) -> dict[tuple[int, int], dict[str, Define]]:
    """Returns the macros of each tile whose slices fit local memory, the largest tile first.

    Args:
        m: Rows of the GEMM: output channels per group.
        tunables: Tunables of the kernel.
        costs: Cost model, which limits the smallest tile.

    Returns:
        Macros by (rows, columns) per work-item.

    Raises:
        UnsupportedError: The smallest tile does not fit.
    """
    depth = tunables["T_TK"]
    requirements = {
        tile: Requires(local_mem_bytes=tile_bytes(tile, depth) + _K_INDEX_BYTES * depth)
        for tile in conv_tiles(m, tunables["T_RM"], tunables["T_RN"], costs.tile_side)
    }
    ctx.require(list(requirements.values())[-1])
    fitting = (tile for tile, need in requirements.items() if need.missing(ctx.caps) is None)
    return {tile: tile_defines(tile, depth, ctx.caps) for tile in fitting}


def conv_tiles(m: int, rows: int, columns: int, least: int) -> tuple[tuple[int, int], ...]:
    """Returns (rows, columns) per work-item of each tile for GEMMs of `m` rows, the largest first.

    Rows of the first tile are halved while the tile has at least twice `m` rows. Each following
    tile halves the longer side, or both if they are equal.

    Args:
        m: Rows of the GEMM.
        rows: Rows per work-item of the largest tile.
        columns: Columns per work-item of the largest tile.
        least: Minimum rows or columns per work-item, along the longer side.
    """
    while rows > 1 and m <= SIDE * rows // 2:
        rows //= 2
    tiles = [(rows, columns)]
    while max(tiles[-1]) >= 2 * max(least, 1):
        rows, columns = tiles[-1]
        longer = max(rows, columns)
        tiles.append((rows // (1 + (rows == longer)), columns // (1 + (columns == longer))))
    return tuple(tiles)


class TileSplit(NamedTuple):
    """Index of a tile in the result of `conv_tiles`, and number of splits of K, the summed axis."""

    tile: int
    splits: int


@pure
def best_split(
    m: int,
    n: int,
    groups: int,
    slices: int,
    depth: int,
    moved: int,
    units: int,
    rows: int,
    columns: int,
    *,
    costs: ConvGpuCosts,
    join_cycles: int,
) -> TileSplit:
    """Returns the fastest tile and number of splits of K for the GEMM of a convolution.

    Large tiles read less memory. Small tiles and splits leave no compute unit idle, and read from
    more addresses at a time.

    Args:
        m: Rows of the GEMM: output channels per group.
        n: Columns of the GEMM: output positions of all images.
        groups: Groups of the convolution.
        slices: Number of slices of K, the summed axis.
        depth: Elements of K per slice.
        moved: Elements that are read or written in memory.
        units: Compute units of the device.
        rows: Rows per work-item of the largest tile.
        columns: Columns per work-item of the largest tile.
        costs: Cost model.
        join_cycles: Estimated cycles of summing the splits.
    """
    tiles = list(enumerate(conv_tiles(m, rows, columns, costs.tile_side)))
    split_choices = _SPLITS if slices >= costs.split_slices else _SPLITS[:1]

    def time(choice: tuple[int, tuple[int, int], int]) -> float:
        _, (r, c), splits = choice
        work_groups = ceil_div(m, SIDE * r) * ceil_div(n, SIDE * c) * groups * splits
        # Cycles of a compute unit per slice. Waiting is hidden as long as other work-groups
        # compute.
        slice_cycles = ceil_div(work_groups, units) * depth * tile_cycles(r, c)
        computing = (ceil_div(slices, splits) + costs.ends) * max(slice_cycles, costs.wait)
        sums = splits * m * n * groups if splits > 1 else 0
        moving = costs.moving * (moved + sums) / (work_groups * SIDE**2)
        return max(computing, moving) + (join_cycles + sums / (2 * units) if sums else 0)

    tile, _, splits = min(((i, t, s) for i, t in tiles for s in split_choices), key=time)
    slices_per_split = max(ceil_div(slices, splits), 1)
    # Rounding up the slices per split may leave the last splits without a slice: omit them.
    return TileSplit(tile, max(ceil_div(slices, slices_per_split), 1))


@dataclass(frozen=True)
class _Sliced:
    """K of a convolution's GEMM, divided into slices that fit local memory.

    Attributes:
        windows: Windows of the images, the B of the GEMM.
        order: Order of window elements along K: IN_PLACE, BY_TAP or BY_CHANNEL (`ImageWindows`).
        depth: Maximum number of elements of K per slice.
        count: Number of slices.
        k: Size of K, the summed axis.
        side: Work-items along each side of a work-group.
    """

    windows: ImageWindows
    order: int
    depth: int
    count: int
    k: int
    side: int

    def weights(self, product: GemmProblem, ctx: Lowering) -> tuple[list[Launch], BufferArg]:
        """Returns launches that copy the weights, and the buffer of the copy.

        The copy is `[groups, K, output channels per group]`, with K the summed axis. Constant
        weights are packed once per model, without launches; computed weights at each run.
        """
        source, m = product.a.buffer.buffer, product.m
        if not self.k:
            return [], product.a.buffer
        taps = self.windows.taps if self.order == BY_TAP else 1
        if isinstance(source, Value) and source.is_constant and source.has_numbers:
            # rows=None packs on the host: the device kernel only packs panels for CPUs.
            packed = Panels(self.k, m, m, transposed=True, taps=taps).of(source)
            return [], BufferArg(replace(packed, rows=None))
        shape = (product.batch[1], taps, self.k // taps, m)
        target = BufferArg(ctx.scratch(prod(shape)))
        steps = (self.k * m, 1, taps, self.k), contiguous_strides(shape)
        return copy_launches(ctx, product.a.buffer, target, product.dtype, shape, *steps), target

    def launches(
        self,
        product: GemmProblem,
        tiles: Mapping[tuple[int, int], Mapping[str, Define]],
        splits: int,
        chosen: int | None,
    ) -> Iterator[Launch]:
        """Yields the convolution's launch for each tile; only the chosen one has work-groups.

        Args:
            tiles: Macros by (rows, columns) per work-item of each tile.
            splits: Number of splits of K.
            chosen: Index in `tiles` of the tile to compute with; None to compute nothing.
        """
        windows, (images, groups) = self.windows, product.batch
        row = windows.channels if self.order == BY_TAP else self.k
        defines: dict[str, Define] = {
            **product.epilogue.defines,
            "S_WINDOW": self.order,
            "S_WHOLE": int(not row % self.depth),
            "T_SIDE": self.side,
        }
        # Windows of an empty image are all padding, so K has no slices.
        count = self.count if windows.plane else 0
        args: dict[str, Any] = {"y": product.y, "w": product.a.buffer, "x": product.b.buffer}
        args |= {"M": product.m, "P": product.n, "K": self.k, "C": windows.channels}
        args |= {"plane": windows.plane, "images": images, "groups": groups}
        args |= {"slices": ceil_div(count, splits), "all": count}
        args |= {**(windows.geometry if self.order else {}), **product.epilogue.args}
        for index, ((rows, columns), macros) in enumerate(tiles.items()):
            kernel = KernelSpec.of("conv/conv_gpu.cl", CONV.entry, **defines, **macros)
            across = ceil_div(images * product.n, self.side * columns) * self.side
            down = ceil_div(product.m, self.side * rows) * self.side
            size = (across, down, groups * splits) if index == chosen else (0, 0, 0)
            yield launch(kernel, size, (self.side, self.side, 1), product.flops, **args)
