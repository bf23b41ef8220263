"""Strided views and their copy: one kernel behind every op that only moves elements."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import DType
from clrt.ir.symbolic_trace import clamp, pure
from clrt.kernels.parts import Subview
from clrt.kernels.spec import (
    BufferArg,
    KernelSpec,
    Launch,
    RowPitchSupport,
    chunks_per_group,
    indexed_args,
    launch,
    unread_arg,
)
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div, round_up

MAX_RANK = 6
TILED = tuned("copy_tiled", {"T_ITEMS": (64, 128, 256)}, T_ITEMS=256)
_EACH = 4  # elements of a work-item of copy_tiled

# What a work-item of a CPU copies, and the side of its tiles.
_ITEM_ELEMS = 8192
_SIDE = 16
_LEAST_SIDE = 4
_PARTS = 4  # of a launch of copy_parts_cpu
_SHARE = 1024  # elements of a work-item that walks places


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides: list[int] = []
    step = 1
    for dim in reversed(shape):
        strides.insert(0, step)
        step *= dim
    return tuple(strides)


def broadcast_strides(shape: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Strides that read a contiguous tensor as if it had the shape `target` (0 on its 1s)."""
    lead = len(target) - len(shape)
    own = contiguous_strides(shape)
    return (0,) * lead + tuple(
        0 if dim == 1 and goal != 1 else step
        for dim, goal, step in zip(shape, target[lead:], own, strict=True)
    )


def collapse(
    shape: Sequence[int], *strides: Sequence[int]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Merges neighbouring axes that every view walks as one, and drops axes of one element."""
    dims: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, dim in enumerate(shape):
        if dim == 1:
            continue
        steps = [s[axis] for s in strides]
        if dims and all(k[-1] == step * dim for k, step in zip(kept, steps, strict=True)):
            dims[-1] *= dim
            for k, step in zip(kept, steps, strict=True):
                k[-1] = step
            continue
        dims.append(dim)
        for k, step in zip(kept, steps, strict=True):
            k.append(step)
    return tuple(dims), [tuple(k) for k in kept]


def pad_rank(values: Sequence[int], fill: int, places: int = MAX_RANK) -> tuple[int, ...]:
    """Values right-aligned in some places.

    Raises:
        UnsupportedError: There are more values than places.
    """
    if len(values) > places:
        raise UnsupportedError(f"a view of {len(values)} axes; kernels walk up to {places}.")
    return (fill,) * (places - len(values)) + tuple(values)


def axes(prefix: str, values: Sequence[int], fill: int, places: int = MAX_RANK) -> dict[str, int]:
    """The arguments that AXES of common/axes.clh declares, or THREE: right-aligned values.

    Raises:
        UnsupportedError: As `pad_rank`.
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
    """Launches that copy a view to a view; several where more axes remain than kernels walk."""
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
        flat = launch_places(kernel, dims, ctx.caps, src=src, dst=dst, **steps)
        return _in_tiles(ctx, flat, src, dst, dtype, dims, source, target)
    size, numbers = _by_rows(dims, source, target)
    kernel = KernelSpec.of("movement/copy_strided.cl", "copy_strided_cpu", DATA_T=bits, CPU=1)
    return [launch(kernel, size, (1,), src=src, dst=dst, **numbers)]


def launch_places(
    kernel: KernelSpec, dims: Sequence[int], caps: DeviceCaps, work: int = 1, /, **args: Any
) -> Launch:
    """A kernel over the places of `dims`: EACH_PLACE of common/axes.clh.

    A work-item has one place; on CPUs many, row by row (the define CPU). Those of GPUs are side by
    side, so that short rows leave none idle.

    Args:
        work: Elements that a place reads or writes.
        args: The kernel's arguments besides PLACES.
    """
    d = pad_rank(dims, 1)
    size, local, share = (prod(d),), None, prod(d)
    if caps.is_cpu:
        kernel = KernelSpec.of(kernel.source, kernel.entry, **dict(kernel.defines), CPU=1)
        share = chunks_per_group(prod(d), max(1, _SHARE // work), caps)
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
    """A kernel over places in a grid: PLACE_2 or PLACE_3 of common/axes.clh.

    Work-items of GPUs are side by side, as those of `launch_places`.
    """
    if not caps.is_cpu:
        kernel = KernelSpec.of(kernel.source, kernel.entry, **dict(kernel.defines), FLAT=1)
        size = (prod(size),)
    return launch(kernel, size, None, flops, **args)


def _walk(
    dims: Sequence[int], source: Sequence[int], target: Sequence[int], least: int
) -> tuple[list[int], bool]:
    """The axes in an order that ends with the one along which rows of the result lie.

    And whether rows of the source, of `least` elements or more, lie along the axis before it.
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
    flat: Launch,
    src: BufferArg,
    dst: BufferArg,
    dtype: DType,
    dims: Sequence[int],
    source: Sequence[int],
    target: Sequence[int],
) -> list[Launch]:
    """A copy by tiles in local memory, where rows of source and result lie along different axes.

    Args:
        flat: The copy without tiles: for other views, for sizes that hardly fill a tile, and for
            devices without room for one.
    """
    order, tiled = _walk(dims, source, target, 2)
    items = ctx.tunables(TILED)["T_ITEMS"]
    tile = _EACH * items
    room = (tile + tile // _LEAST_SIDE) * dtype.itemsize
    needs = replace(requires.GPU, work_group_size=items, local_mem_bytes=room)
    if not tiled or needs.missing(ctx.caps):
        return [flat]
    d = pad_rank([dims[axis] for axis in order], 1)
    s, t = (pad_rank([v[axis] for axis in order], 0) for v in (source, target))
    width = _tile_width(d[4], d[5], tile)
    height = tile // width
    groups = ceil_div(d[4], width) * ceil_div(d[5], height) * prod(d[:4])
    fills = d[4] * d[5] >= tile // 2
    steps = indexed_args("d", d) | indexed_args("s", s) | indexed_args("t", t)
    steps |= {"wide": _log2(width), "high": _log2(height)}
    defines: dict[str, Define] = {"DATA_T": dtype.cl_bits, "T_ITEMS": items}
    kernel = KernelSpec.of("movement/copy_strided.cl", TILED.entry, **defines)
    size = groups * items if fills else 0
    # What is not taken is launched without work-groups: other sizes take it, and compile nothing.
    by_tiles = launch(kernel, (size,), (items,), src=src, dst=dst, **steps)
    return [replace(flat, global_size=(0,)) if fills else flat, by_tiles]


@pure
def _tile_width(rows: int, columns: int, tile: int) -> int:
    """How many of `rows` a tile has, a power of two: the rest of it are columns."""
    width = _LEAST_SIDE
    while width * width < tile:
        width *= 2
    while width > _LEAST_SIDE and width // 2 >= rows:
        width //= 2
    while width * _LEAST_SIDE < tile and tile // width // 2 >= columns:
        width *= 2
    return width


@pure
def _log2(power: int) -> int:
    return power.bit_length() - 1


def _by_rows(
    dims: Sequence[int], source: Sequence[int], target: Sequence[int]
) -> tuple[tuple[int], dict[str, int]]:
    """Rows of the result, or tiles where the rows of the source lie along another axis."""
    order, tiled = _walk(dims, source, target, _LEAST_SIDE)
    d = pad_rank([dims[axis] for axis in order], 1)
    s, t = (pad_rank([v[axis] for axis in order], 0) for v in (source, target))
    rows = d[4] if tiled else prod(d[:5])
    side = _SIDE if tiled else 1
    width = clamp(d[5], 1, _ITEM_ELEMS // side)
    height = clamp(rows, 1, round_up(_ITEM_ELEMS // width, side))
    items = ceil_div(d[5], width) * ceil_div(rows, height) * (prod(d[:4]) if tiled else 1)
    steps = indexed_args("d", d) | indexed_args("s", s) | indexed_args("t", t)
    return (items,), steps | {"height": height, "width": width, "tiled": int(tiled)}


@dataclass(frozen=True)
class StridedCopy:
    """Rows of `panel_width` elements each, `source` elements apart in src and `target` in dst."""

    src: BufferArg
    dst: BufferArg
    width: int
    source: int
    target: int

    @classmethod
    def into(cls, part: Subview) -> StridedCopy:
        """What puts a part where it belongs in the whole."""
        whole, width = BufferArg(part.parent, part.offset), part.width
        return cls(BufferArg(part.value), whole, width, width, part.pitch)

    @classmethod
    def out_of(cls, part: Subview) -> StridedCopy:
        """What takes a part out of the whole."""
        whole, width = BufferArg(part.parent, part.offset), part.width
        return cls(whole, BufferArg(part.value), width, part.pitch, width)


def copy_parts(
    ctx: Lowering,
    parts: Sequence[StridedCopy],
    dtype: DType,
    rows: int,
    placed: Collection[int] = (),
) -> list[Launch]:
    """Launches that copy the same number of rows of several parts, on CPUs four parts each.

    Args:
        placed: The parts, by number, that lie where they belong.
    """
    # A part that is empty at some sizes, or lies there, makes no other kernel of it.
    is_one = len(parts) < 2
    left = [p for i, p in enumerate(parts) if i not in placed]
    parts = [p for p in left if rows * p.width] or left[:1]
    if not ctx.caps.is_cpu or is_one:
        views = ((p, (rows, p.width), (p.source, 1), (p.target, 1)) for p in parts)
        return [x for p, *v in views for x in copy_launches(ctx, p.src, p.dst, dtype, *v)]
    spec = KernelSpec.of("movement/copy_strided.cl", "copy_parts_cpu", DATA_T=dtype.cl_bits, CPU=1)
    launches = []
    for first in range(0, len(parts), _PARTS):
        some = parts[first : first + _PARTS]
        across = _largest(1, sum(p.width for p in some))
        height = clamp(rows, 1, ceil_div(_ITEM_ELEMS, across))
        pieces = ceil_div(_largest(*(p.width for p in some)), _ITEM_ELEMS)
        idle = StridedCopy(unread_arg(some[0].src.buffer), unread_arg(some[0].dst.buffer), 0, 0, 0)
        args: dict[str, Any] = {}
        for i, part in enumerate([*some, *[idle] * (_PARTS - len(some))]):
            args |= {f"x{i}": part.src, f"y{i}": part.dst, f"width{i}": part.width}
            args |= {f"s{i}": part.source, f"t{i}": part.target}
            if part is not idle:
                args[f"x{i}"] = replace(part.src, rows=RowPitchSupport(part.source, (f"s{i}",)))
                args[f"y{i}"] = replace(part.dst, rows=RowPitchSupport(part.target, (f"t{i}",)))
        args |= {"rows": rows, "height": height, "pieces": pieces, "width": _ITEM_ELEMS}
        launches.append(launch(spec, (ceil_div(rows, height) * pieces,), (1,), **args))
    return launches


@pure
def _largest(*numbers: int) -> int:
    return max(numbers)
