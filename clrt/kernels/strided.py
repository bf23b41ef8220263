"""Strided views, and launches that copy one to another, for all ops that only move elements."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import DType
from clrt.ir.symbolic_trace import clamp, pure
from clrt.kernels.size_formulas import largest, log2
from clrt.kernels.spec import (
    BufferArg,
    KernelSpec,
    Launch,
    RowPitchSupport,
    indexed_args,
    launch,
    unread_arg,
)
from clrt.kernels.subview import Subview
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

# Maximum number of axes that kernels index; more are split into several launches.
MAX_RANK = 6
TILED = tuned("copy_tiled", {"T_ITEMS": (64, 128, 256)}, T_ITEMS=256)
# Elements per work-item of copy_tiled.
_TILED_ELEMS = 4
# Side of the square tiles of a CPU work-item, in elements.
_SIDE = 16
# Minimum side of a tile in elements.
_MIN_SIDE = 4
# Copies per launch of copy_parts_cpu.
_COPIES_PER_LAUNCH = 4


class MovePartition(Thresholds):
    """Thresholds of the partition of kernels that only move elements over CPU work-items."""

    elems: int = tunable(
        8192, "elements", "Maximum per work-item that copies rows or tiles, to amortize its start."
    )
    placed: int = tunable(
        1024, "elements", "Maximum per work-item that computes the position of each element."
    )
    filled: int = tunable(
        4096, "elements", "Written by a work-item that fills, in about a microsecond."
    )

    group: ClassVar = "move_shares"


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a contiguous row-major tensor."""
    strides: list[int] = []
    step = 1
    for dim in reversed(shape):
        strides.insert(0, step)
        step *= dim
    return tuple(strides)


def broadcast_strides(shape: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Returns strides, in elements, that broadcast a contiguous tensor to a larger shape.

    The stride is 0 along broadcast axes.

    Args:
        shape: Shape of the tensor.
        target: Shape to broadcast to.
    """
    lead = len(target) - len(shape)
    strides = contiguous_strides(shape)
    return (0,) * lead + tuple(
        0 if dim == 1 and goal != 1 else stride
        for dim, goal, stride in zip(shape, target[lead:], strides, strict=True)
    )


def collapse(
    shape: Sequence[int], *strides: Sequence[int]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Merges neighbouring axes of strided views if all views allow it; drops axes of size 1.

    Args:
        shape: Shape that the views have in common.
        strides: Strides of each view, in elements.

    Returns:
        The merged shape, and the strides of each view.
    """
    dims: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for axis, dim in enumerate(shape):
        if dim == 1:
            continue
        steps = [s[axis] for s in strides]
        if dims and all(m[-1] == step * dim for m, step in zip(merged, steps, strict=True)):
            dims[-1] *= dim
            for m, step in zip(merged, steps, strict=True):
                m[-1] = step
            continue
        dims.append(dim)
        for m, step in zip(merged, steps, strict=True):
            m.append(step)
    return tuple(dims), [tuple(m) for m in merged]


def pad_rank(values: Sequence[int], fill: int, places: int = MAX_RANK) -> tuple[int, ...]:
    """Pads sizes or strides on the left with `fill` to `places` axes.

    Args:
        values: Sizes or strides, one per axis.
        fill: Value of the added axes: 1 for sizes, 0 for strides.
        places: Number of axes of the result.

    Raises:
        UnsupportedError: There are more than `places` values.
    """
    if len(values) > places:
        raise UnsupportedError(f"a view of {len(values)} axes; kernels walk up to {places}.")
    return (fill,) * (places - len(values)) + tuple(values)


def axes(prefix: str, values: Sequence[int], fill: int, places: int = MAX_RANK) -> dict[str, int]:
    """Returns sizes or strides as kernel arguments `prefix`0, `prefix`1, … (common/axes.clh).

    The macro PARAMS_6 declares MAX_RANK such parameters, the macro PARAMS_3 three of them.

    Args:
        prefix: Prefix of the argument names.
        values: Sizes or strides, one per axis; padded on the left with `fill`.
        fill: Value of the added axes: 1 for sizes, 0 for strides.
        places: Number of arguments.

    Raises:
        UnsupportedError: There are more than `places` values.
    """
    return indexed_args(prefix, pad_rank(values, fill, places))


def copy_launches(
    ctx: Lowering,
    src: BufferArg,
    dst: BufferArg,
    dtype: DType,
    shape: Sequence[int],
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
) -> list[Launch]:
    """Returns launches that copy one strided view to another.

    Neighbouring axes are merged if possible. If more than MAX_RANK axes remain, there is one launch
    (on GPUs, up to two) per index of the smallest axis.

    Args:
        src: Source.
        dst: Destination.
        dtype: Element type of both views.
        shape: Shape of both views.
        src_strides: Strides of the source, in elements.
        dst_strides: Strides of the destination, in elements.
    """
    dims, (source, target) = collapse(shape, src_strides, dst_strides)
    if len(dims) > MAX_RANK:
        axis = dims.index(min(dims))
        rest = [(*v[:axis], *v[axis + 1 :]) for v in (dims, source, target)]
        parts = [
            (
                replace(src, offset=src.offset + i * source[axis]),
                replace(dst, offset=dst.offset + i * target[axis]),
            )
            for i in range(dims[axis])
        ]
        return [launch for a, b in parts for launch in copy_launches(ctx, a, b, dtype, *rest)]
    bits = dtype.cl_bits
    if not ctx.caps.is_cpu:
        steps = axes("s", source, 0) | axes("t", target, 0)
        kernel = KernelSpec.of("movement/copy_strided.cl", "copy_strided", DATA_T=bits)
        untiled = launch_places(kernel, dims, ctx, src=src, dst=dst, **steps)
        return _in_tiles(ctx, untiled, src, dst, dtype, dims, source, target)
    size, numbers = _by_rows(dims, source, target, ctx.thresholds(MovePartition).elems)
    kernel = KernelSpec.of("movement/copy_strided.cl", "copy_strided_cpu", DATA_T=bits, CPU=1)
    return [launch(kernel, size, (1,), src=src, dst=dst, **numbers)]


def launch_places(
    kernel: KernelSpec, dims: Sequence[int], ctx: Lowering, work: int = 1, /, **args: Any
) -> Launch:
    """Returns the launch of a kernel over all indices of a shape (macro FOR_EACH_ELEMENT).

    A GPU work-item computes one index; a CPU work-item (macro CPU) computes several, row by row.
    The global size is one-dimensional, so that short rows leave no work-item idle. The macros are
    declared in common/axes.clh.

    Args:
        kernel: The kernel; macro CPU is added on CPUs.
        dims: The shape, of at most MAX_RANK axes.
        work: Elements that the kernel accesses per index.
        args: Kernel arguments besides those of the macro ELEMENT_PARAMS.
    """
    d = pad_rank(dims, 1)
    size, local, share = (prod(d),), None, prod(d)
    if ctx.caps.is_cpu:
        kernel = KernelSpec.of(kernel.source, kernel.entry, **dict(kernel.defines), CPU=1)
        elems = ctx.thresholds(MovePartition).placed
        share = ctx.chunks_per_group(prod(d), max(1, elems // work))
        size, local = (ceil_div(prod(d), share),), (1,)
    return launch(kernel, size, local, share=share, **indexed_args("d", d), **args)


def launch_grid(
    kernel: KernelSpec,
    size: tuple[int, ...],
    caps: DeviceCaps,
    flops: int = 0,
    /,
    **args: Any,
) -> Launch:
    """Returns the launch of a kernel with 2-D or 3-D indices (macros GLOBAL_XY and GLOBAL_XYZ).

    On GPUs the global size is flattened to one dimension (macro FLAT), so that short rows leave no
    work-item idle. The macros are declared in common/axes.clh.

    Args:
        kernel: The kernel; macro FLAT is added on GPUs.
        size: Number of indices per dimension, the fastest dimension first.
        flops: Floating-point operations of the launch.
        args: Kernel arguments.
    """
    if not caps.is_cpu:
        kernel = KernelSpec.of(kernel.source, kernel.entry, **dict(kernel.defines), FLAT=1)
        size = (prod(size),)
    return launch(kernel, size, None, flops, **args)


def _walk(
    dims: Sequence[int], source: Sequence[int], target: Sequence[int], least: int
) -> tuple[list[int], bool]:
    """Returns an axis order for a strided copy, and whether the copy should be tiled.

    The last axis of the order is contiguous in the destination, if any axis is. For a tiled copy,
    the last but one is contiguous in the source.

    Args:
        dims: Sizes of the axes.
        source: Strides of the source, in elements.
        target: Strides of the destination, in elements.
        least: Minimum size of the source's contiguous axis for a tiled copy.
    """
    order = sorted(range(len(dims)), key=lambda axis: (target[axis] == 1, axis))
    across = [axis for axis in order[:-1] if source[axis] == 1 and dims[axis] >= least]
    tiled = bool(across) and source[order[-1]] > 1 and target[order[-1]] == 1
    if tiled:
        order.remove(across[0])
        order.insert(-1, across[0])
    return order, tiled


def _in_tiles(
    ctx: Lowering,
    untiled: Launch,
    src: BufferArg,
    dst: BufferArg,
    dtype: DType,
    dims: Sequence[int],
    source: Sequence[int],
    target: Sequence[int],
) -> list[Launch]:
    """Returns the launches of a GPU copy through tiles in local memory, or `untiled` alone.

    If the views are contiguous along different axes, and the device has enough local memory, both
    launches are returned, one of them without work-groups: `untiled` copies sizes that fill less
    than half a tile. Otherwise `untiled` is returned alone.

    Args:
        untiled: Launch of the copy without tiles.
        src: Source.
        dst: Destination.
        dtype: Element type.
        dims: Sizes of the axes.
        source: Strides of `src`, in elements.
        target: Strides of `dst`, in elements.
    """
    order, tiled = _walk(dims, source, target, 2)
    items = ctx.tunables(TILED)["T_ITEMS"]
    tile = _TILED_ELEMS * items
    tile_bytes = (tile + tile // _MIN_SIDE) * dtype.itemsize
    needs = replace(requires.GPU, work_group_size=items, local_mem_bytes=tile_bytes)
    if not tiled or needs.missing(ctx.caps):
        return [untiled]
    d = pad_rank([dims[axis] for axis in order], 1)
    s, t = (pad_rank([v[axis] for axis in order], 0) for v in (source, target))
    width = _tile_width(d[4], d[5], tile)
    height = tile // width
    groups = ceil_div(d[4], width) * ceil_div(d[5], height) * prod(d[:4])
    fills = d[4] * d[5] >= tile // 2
    steps = indexed_args("d", d) | indexed_args("s", s) | indexed_args("t", t)
    steps |= {"wide": log2(width), "high": log2(height)}
    defines: dict[str, Define] = {"DATA_T": dtype.cl_bits, "T_ITEMS": items}
    kernel = KernelSpec.of("movement/copy_strided.cl", TILED.entry, **defines)
    size = groups * items if fills else 0
    # Both launches exist at all sizes, and one has no work-groups: no size needs to compile a
    # kernel.
    by_tiles = launch(kernel, (size,), (items,), src=src, dst=dst, **steps)
    return [replace(untiled, global_size=(0,)) if fills else untiled, by_tiles]


@pure
def _tile_width(rows: int, columns: int, tile: int) -> int:
    """Returns the rows per tile, a power of two; the columns per tile are `tile` / result.

    Args:
        rows: Rows of the matrix that tiles cover.
        columns: Columns of the matrix that tiles cover.
        tile: Elements per tile, a power of two.
    """
    width = _MIN_SIDE
    while width * width < tile:
        width *= 2
    while width > _MIN_SIDE and width // 2 >= rows:
        width //= 2
    while width * _MIN_SIDE < tile and tile // width // 2 >= columns:
        width *= 2
    return width


def _by_rows(
    dims: Sequence[int], source: Sequence[int], target: Sequence[int], elems: int
) -> tuple[tuple[int], dict[str, int]]:
    """Returns the global size and the numeric arguments of kernel copy_strided_cpu.

    The kernel copies square tiles if source and destination are contiguous along different axes,
    else rows (`_walk` decides).

    Args:
        dims: Sizes of the axes.
        source: Strides of the source, in elements.
        target: Strides of the destination, in elements.
        elems: Maximum number of elements per work-item.
    """
    order, tiled = _walk(dims, source, target, _MIN_SIDE)
    d = pad_rank([dims[axis] for axis in order], 1)
    s, t = (pad_rank([v[axis] for axis in order], 0) for v in (source, target))
    rows = d[4] if tiled else prod(d[:5])
    side = _SIDE if tiled else 1
    width = clamp(d[5], 1, elems // side)
    height = clamp(rows, 1, round_up(elems // width, side))
    items = ceil_div(d[5], width) * ceil_div(rows, height) * (prod(d[:4]) if tiled else 1)
    steps = indexed_args("d", d) | indexed_args("s", s) | indexed_args("t", t)
    return (items,), steps | {"height": height, "width": width, "tiled": int(tiled)}


@dataclass(frozen=True)
class StridedCopy:
    """A copy of rows between two tensors, each with its own row pitch.

    Attributes:
        src: Source.
        dst: Destination.
        width: Elements per row.
        source: Row pitch of `src`, in elements.
        target: Row pitch of `dst`, in elements.
    """

    src: BufferArg
    dst: BufferArg
    width: int
    source: int
    target: int

    @classmethod
    def into(cls, part: Subview) -> StridedCopy:
        """Returns the copy that writes a subview to its rows in the parent.

        Args:
            part: The subview; the copy reads its value as a contiguous tensor.
        """
        parent, width = BufferArg(part.parent, part.offset), part.width
        return cls(BufferArg(part.value), parent, width, width, part.pitch)

    @classmethod
    def out_of(cls, part: Subview) -> StridedCopy:
        """Returns the copy of a subview from its rows in the parent to a contiguous tensor."""
        parent, width = BufferArg(part.parent, part.offset), part.width
        return cls(parent, BufferArg(part.value), width, part.pitch, width)


def copy_parts(
    ctx: Lowering,
    parts: Sequence[StridedCopy],
    dtype: DType,
    rows: int,
    placed: Collection[int] = (),
) -> list[Launch]:
    """Returns launches of several row copies; a CPU launch does up to four copies.

    Args:
        parts: The copies.
        dtype: Element type.
        rows: Rows per copy, the same for all.
        placed: Indices of copies to omit, because the subview aliases its parent.
    """
    # The kernel does not depend on which copies are omitted, or empty at some sizes.
    is_single = len(parts) < 2
    remaining = [p for i, p in enumerate(parts) if i not in placed]
    parts = [p for p in remaining if rows * p.width] or remaining[:1]
    if not ctx.caps.is_cpu or is_single:
        views = ((p, (rows, p.width), (p.source, 1), (p.target, 1)) for p in parts)
        return [x for p, *v in views for x in copy_launches(ctx, p.src, p.dst, dtype, *v)]
    spec = KernelSpec.of("movement/copy_strided.cl", "copy_parts_cpu", DATA_T=dtype.cl_bits, CPU=1)
    launches, elems = [], ctx.thresholds(MovePartition).elems
    for first in range(0, len(parts), _COPIES_PER_LAUNCH):
        batch = parts[first : first + _COPIES_PER_LAUNCH]
        across = largest(1, sum(p.width for p in batch))
        height = clamp(rows, 1, ceil_div(elems, across))
        pieces = ceil_div(largest(*(p.width for p in batch)), elems)
        src, dst = batch[0].src.buffer, batch[0].dst.buffer
        empty = StridedCopy(unread_arg(src), unread_arg(dst), 0, 0, 0)
        args: dict[str, Any] = {}
        for i, part in enumerate([*batch, *[empty] * (_COPIES_PER_LAUNCH - len(batch))]):
            args |= {f"x{i}": part.src, f"y{i}": part.dst, f"width{i}": part.width}
            args |= {f"s{i}": part.source, f"t{i}": part.target}
            if part is not empty:
                args[f"x{i}"] = replace(part.src, rows=RowPitchSupport(part.source, (f"s{i}",)))
                args[f"y{i}"] = replace(part.dst, rows=RowPitchSupport(part.target, (f"t{i}",)))
        args |= {"rows": rows, "height": height, "pieces": pieces, "width": elems}
        launches.append(launch(spec, (ceil_div(rows, height) * pieces,), (1,), **args))
    return launches
