"""Convolution on GPUs: a product of weights, and of windows that its kernel reads from images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from clrt.device.requires import Requires
from clrt.ir.cl_code import Define
from clrt.ir.graph import Value
from clrt.ir.symbolic_trace import pure
from clrt.kernels.gemm_gpu import (
    JOIN_CYCLES,
    SIDE,
    join_launch,
    tile_bytes,
    tile_cycles,
    tile_defines,
)
from clrt.kernels.gemm_problem import Epilogue, GemmProblem
from clrt.kernels.panel_layout import Panels
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch
from clrt.kernels.strided import contiguous_strides, copy_launches
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div

# As of gemm_gpu; powers of two. T_SIDE: of a work-group, small for simulators.
CONV = tuned(
    "conv_gpu",
    {"T_RM": (4, 8), "T_RN": (4, 8), "T_TK": (8, 16)},
    T_RM=8,
    T_RN=8,
    T_TK=16,
    T_SIDE=SIDE,
)
# S_WINDOW of the kernel.
IN_PLACE, BY_TAP, BY_CHANNEL = range(3)
# Slices by taps are taken that are up to so many percent of those by channels: a work-item spends
# less on finding an element.
_BY_TAP_PERCENT = 125
_LEAST = 2  # of a work-item, along the longer side
_PLACE_BYTES = 2 * 16  # of a place of K, in local memory
# Slices from which on a product may have parts of K; how many; and a factor beyond all of them.
_DEEP_SLICES = 16
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16)
_BASE = 32
# Cycles of a work-item: in which the elements of a slice come from a cache, and in which it reads
# or writes an element of memory. To start and to end takes the time of some slices.
_WAIT = 300
_MOVING = 180
_ENDS = 2


@dataclass(frozen=True)
class ImageWindows:
    """What a convolution reads.

    Attributes:
        channels: Of a group.
        taps: Elements of a window in a channel.
        plane: Elements of a channel of an image.
        geometry: The kernel's arguments; none where each window is the element at its place.
    """

    channels: int
    taps: int
    plane: int
    geometry: Mapping[str, int]

    def order(self, depth: int) -> int:
        """S_WINDOW of the kernel, for slices of some depth."""
        if not self.geometry or not self.channels * self.taps:
            return IN_PLACE
        by_tap, by_channel = self.slices(BY_TAP, depth), self.slices(BY_CHANNEL, depth)
        return BY_TAP if 100 * by_tap <= _BY_TAP_PERCENT * by_channel else BY_CHANNEL

    def slices(self, order: int, depth: int) -> int:
        """How many slices K has."""
        if order == BY_TAP:
            return self.taps * ceil_div(self.channels, depth)
        return ceil_div(self.taps * self.channels, depth)


def emit_windows(product: GemmProblem, windows: ImageWindows, ctx: Lowering) -> list[Launch]:
    """The launches of a convolution, without its columns in memory.

    The kernels that are not taken are launched without work-groups: sizes change from call to call,
    and none may compile a kernel.

    Args:
        product: By images and groups, of weights `[O, C / group, window …]` and images.

    Raises:
        UnsupportedError: The epilogue needs other types than float32, or the device has too little
            local memory.
    """
    product.epilogue.check_vectors()
    if product.is_empty:
        return []
    tunables, units = ctx.tunables(CONV), ctx.caps.cores
    depth, (images, groups) = tunables["T_TK"], product.batch
    tiles, side = _fitting_tiles(product.m, tunables, ctx), tunables["T_SIDE"]
    order = windows.order(depth)
    sliced = _Sliced(windows, order, depth, windows.slices(order, depth), product.k, side)
    columns = images * product.n
    moved = product.batches * (windows.channels * windows.plane + product.m * product.n)
    moved += groups * product.m * product.k
    chosen = best_split(
        product.m, columns, groups, sliced.count, depth, moved, units, *next(iter(tiles))
    )
    taken, parts = divmod(chosen, _BASE)
    launches, weights = sliced.weights(product, ctx)
    product = replace(product, a=replace(product.a, buffer=weights))
    launches += sliced.launches(product, tiles, 1, taken if parts == 1 else None)
    # Which is no matter of sizes that change.
    if sliced.count >= _DEEP_SLICES:
        sums = ctx.scratch(parts * product.batches * product.m * product.n if parts > 1 else 1)
        share = replace(product, y=sums, epilogue=Epilogue())
        launches += sliced.launches(share, tiles, parts, None if parts == 1 else taken)
        launches.append(join_launch(product, sums, parts))
    return launches


def _fitting_tiles(
    m: int, tunables: Mapping[str, int], ctx: Lowering
) -> dict[tuple[int, int], dict[str, Define]]:
    """The tiles whose slices fit local memory, with their macros; the largest first.

    Raises:
        UnsupportedError: Not even the smallest one does.
    """
    depth = tunables["T_TK"]
    needs = {
        tile: Requires(local_mem_bytes=tile_bytes(tile, depth) + _PLACE_BYTES * depth)
        for tile in conv_tiles(m, tunables["T_RM"], tunables["T_RN"])
    }
    ctx.require(list(needs.values())[-1])
    fitting = (tile for tile, need in needs.items() if need.missing(ctx.caps) is None)
    return {tile: tile_defines(tile, depth, ctx.caps) for tile in fitting}


def conv_tiles(m: int, rows: int, columns: int) -> tuple[tuple[int, int], ...]:
    """Rows and columns of a work-item of each tile, for products of m rows: the largest first.

    No tile has twice the rows that there are, or more. The next one has half of its longer side, or
    of both.
    """
    while rows > 1 and m <= SIDE * rows // 2:
        rows //= 2
    found = [(rows, columns)]
    while max(found[-1]) >= 2 * _LEAST:
        rows, columns = found[-1]
        longer = max(rows, columns)
        found.append((rows // (1 + (rows == longer)), columns // (1 + (columns == longer))))
    return tuple(found)


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
) -> int:
    """Which tile takes the least time, and in how many parts of K: _BASE * tile + parts.

    Large tiles read less; small ones, and parts, leave no unit idle, and read at more places.

    Args:
        slices: Of K, each `depth` deep.
        moved: Elements of memory that are read or written.
        rows, columns: Of a work-item of the largest tile.
    """
    found = list(enumerate(conv_tiles(m, rows, columns)))
    joins = _PARTS if slices >= _DEEP_SLICES else _PARTS[:1]

    def time(choice: tuple[int, tuple[int, int], int]) -> float:
        _, (r, c), parts = choice
        work = ceil_div(m, SIDE * r) * ceil_div(n, SIDE * c) * groups * parts
        # Of a unit: its groups share it, and fill the time in which one waits.
        share = ceil_div(work, units) * depth * tile_cycles(r, c)
        computing = (ceil_div(slices, parts) + _ENDS) * max(share, _WAIT)
        sums = parts * m * n * groups if parts > 1 else 0
        moving = _MOVING * (moved + sums) / (work * SIDE**2)
        return max(computing, moving) + (JOIN_CYCLES + sums / (2 * units) if sums else 0)

    tile, _, parts = min(((i, t, p) for i, t in found for p in joins), key=time)
    each = max(ceil_div(slices, parts), 1)
    return _BASE * tile + max(ceil_div(slices, each), 1)  # none is without a slice


@dataclass(frozen=True)
class _Sliced:
    """How the kernel goes through K.

    Attributes:
        order: S_WINDOW of the kernel.
        count: Of slices, of `depth` rows of weights at most.
        k: Rows of weights.
        side: Of a work-group.
    """

    windows: ImageWindows
    order: int
    depth: int
    count: int
    k: int
    side: int

    def weights(self, product: GemmProblem, ctx: Lowering) -> tuple[list[Launch], BufferArg]:
        """The weights as `[groups, K, M]`: made once where they are constant, else at each run."""
        source, m = product.a.buffer.buffer, product.m
        if not self.k:
            return [], product.a.buffer
        taps = self.windows.taps if self.order == BY_TAP else 1
        if isinstance(source, Value) and source.is_constant and source.has_numbers:
            # By the host: the kernel that packs rows is for a CPU's panels.
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
        parts: int,
        taken: int | None,
    ) -> Iterator[Launch]:
        """One for each tile and its macros, of which at most one has work-groups."""
        windows, (images, groups) = self.windows, product.batch
        row = windows.channels if self.order == BY_TAP else self.k
        defines: dict[str, Define] = {
            **product.epilogue.defines,
            "S_WINDOW": self.order,
            "S_WHOLE": int(not row % self.depth),
            "T_SIDE": self.side,
        }
        # An image without elements has windows of padding alone.
        count = self.count if windows.plane else 0
        args: dict[str, Any] = {"y": product.y, "w": product.a.buffer, "x": product.b.buffer}
        args |= {"M": product.m, "P": product.n, "K": self.k, "C": windows.channels}
        args |= {"plane": windows.plane, "images": images, "groups": groups}
        args |= {"slices": ceil_div(count, parts), "all": count}
        args |= {**(windows.geometry if self.order else {}), **product.epilogue.args}
        for index, ((rows, columns), macros) in enumerate(tiles.items()):
            kernel = KernelSpec.of("conv/conv_gpu.cl", CONV.entry, **defines, **macros)
            across = ceil_div(images * product.n, self.side * columns) * self.side
            down = ceil_div(product.m, self.side * rows) * self.side
            size = (across, down, groups * parts) if index == taken else (0, 0, 0)
            yield launch(kernel, size, (self.side, self.side, 1), product.flops, **args)
