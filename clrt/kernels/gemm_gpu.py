"""Matrix products on GPUs: tiles in local memory, of a size by how many the device runs at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clrt.device import requires
from clrt.device.requires import Requires
from clrt.ir.traced import pure
from clrt.kernels.product import Epilogue, Product, merge
from clrt.kernels.spec import KernelSpec, Launch, Scratch, ceil_div, launch
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering

# T_RM, T_RN: of the largest tile; smaller ones are halves of it.
GPU = tuned(
    "gemm_gpu",
    {"T_RM": (4, 8), "T_RN": (4, 8), "T_TK": (8, 16, 32)},
    T_RM=8,
    T_RN=8,
    T_TK=16,
)
_SIDE = 16
GPU_TILES = replace(requires.GPU, work_group_size=_SIDE**2)
_LEAST = 2  # rows and columns of a work-item
# Work-groups that a compute unit should have; and how much of K a part has at least, or the launch
# that joins the parts costs more than they save.
_GROUPS = 2
_PART_K = 256
_PARTS = (16, 12, 8, 6, 4, 3, 2)
_SOURCE = "matmul/gemm_gpu.cl"


def emit_gpu(product: Product, ctx: Lowering) -> list[Launch]:
    """Tiles in local memory, a block of elements per work-item; A and B are read in place.

    The kernels of tiles that are not taken are launched without work-groups: sizes change from call
    to call, and none may compile a kernel.

    Raises:
        UnsupportedError: As `emit_cpu`, or the device has too little local memory.
    """
    product.epilogue.check_vectors()
    if product.is_empty:
        return []
    tunables = ctx.tunables(GPU)
    tiles = tiles_from(tunables["T_RM"], tunables["T_RN"])
    depth, units = tunables["T_TK"], ctx.caps.compute_units
    ctx.require(Requires(local_mem_bytes=4 * depth * sum(_SIDE * r + 4 for r in tiles[0])))
    launches, product = merge(product, ctx)
    taken = best_tile(product.m, product.n, product.batches, units, *tiles[0])
    parts, most = (_parts(product, m, units, tiles[-1]) for m in (product.m, 1))
    launches += _tiled(product, tunables, tiles, taken if parts == 1 else None)
    if most > 1:
        sums = ctx.scratch(parts * product.m * product.n)
        share = replace(_share(product, parts), y=sums, y_offset=0, epilogue=Epilogue())
        launches += _tiled(share, tunables, tiles, None if parts == 1 else taken)
        launches.append(_joined(product, sums, parts))
    return launches


def tiles_from(rows: int, columns: int) -> tuple[tuple[int, int], ...]:
    """Rows and columns of a work-item of each tile: the largest first, then halves of it."""
    found = [(rows, columns)]
    while min(found[-1]) >= 2 * _LEAST:
        found.append((found[-1][0] // 2, found[-1][1] // 2))
    return tuple(found)


@pure
def best_tile(m: int, n: int, batches: int, units: int, rows: int, columns: int) -> int:
    """Which of the tiles from a largest one on takes the least time.

    Large ones read less, small ones leave no unit idle.
    """
    tiles = tiles_from(rows, columns)

    def time(index: int) -> float:
        rows, columns = tiles[index]
        groups = ceil_div(m, _SIDE * rows) * ceil_div(n, _SIDE * columns) * batches
        # Cycles of a work-item for a step of K: products, and reads and bookkeeping besides, as
        # compilers for NVIDIA's GPUs make of the loop.
        return max(groups, units) * (rows * columns + (rows + columns) / 2 + 3)

    return min(range(len(tiles)), key=time)


def _parts(product: Product, m: int, units: int, least: tuple[int, int]) -> int:
    """Into how many parts K goes for m rows: as many as give each unit work in the least tiles."""
    if product.batches > 1 or product.blocks is not None:
        return 1
    groups = ceil_div(m, _SIDE * least[0]) * ceil_div(product.n, _SIDE * least[1])
    return parts_of(product.k, _GROUPS * units // groups)


@pure
def parts_of(k: int, wanted: int) -> int:
    """The most parts of one size, up to `wanted`, that are deep enough."""
    return next((p for p in _PARTS if p <= wanted and k % p == 0 and k // p >= _PART_K), 1)


def _share(product: Product, parts: int) -> Product:
    """The parts of K as a batch."""
    k = product.k // parts
    a = replace(
        product.a, strides=(k * product.a.strides[-1], *product.a.strides[1:]), by_rows=False
    )
    b = replace(product.b, strides=(k * product.b.strides[-2], *product.b.strides[1:]))
    return replace(product, batch=(parts, 1), k=k, a=a, b=b)


def _tiled(
    product: Product,
    tunables: Mapping[str, int],
    tiles: Sequence[tuple[int, int]],
    taken: int | None,
) -> Iterator[Launch]:
    defines = {
        "T_TK": tunables["T_TK"],
        **product.epilogue.defines,
        "S_A_K_LAST": int(product.a.strides[-1] == 1),
        "S_B_N_LAST": int(product.b.strides[-1] == 1),
        **product.b_defines,
    }
    for index, (rows, columns) in enumerate(tiles):
        size = (
            ceil_div(product.n, _SIDE * columns) * _SIDE,
            ceil_div(product.m, _SIDE * rows) * _SIDE,
            product.batches,
        )
        kernel = KernelSpec.of(_SOURCE, GPU.entry, T_RM=rows, T_RN=columns, **defines)
        grid = size if index == taken else (0, 0, 0)
        yield launch(kernel, grid, (_SIDE, _SIDE, 1), product.flops, **strided_args(product))


def _joined(product: Product, sums: Scratch, parts: int) -> Launch:
    """The launch that adds up the parts; none of one."""
    kernel = KernelSpec.of("matmul/join_parts.cl", "join_parts", **product.epilogue.defines)
    args = {"y": product.result, "sums": sums, "parts": parts, "M": product.m, "N": product.n}
    size = (product.n, product.m) if parts > 1 else (0, 0)
    return launch(
        kernel, size, None, parts * product.m * product.n, **args, **product.epilogue.args
    )


def block_args(product: Product, columns: int) -> dict[str, Any]:
    """B in panels of columns, and what BLOCK_INPUTS declares."""
    assert product.blocks is not None
    levels, pairs = product.blocks.packed(product.n, product.k, columns)
    return {"b": levels, "blocks": pairs, "block_size": product.blocks.size}


def strided_args(product: Product) -> dict[str, Any]:
    """What kernels declare that read A and B in place."""
    b_s0, b_s1, b_k, b_n = product.b.strides
    strides = {"a_k": product.a.strides[-1], "b_s0": b_s0, "b_s1": b_s1, "b_k": b_k, "b_n": b_n}
    b = {"b": product.b.buffer} if product.blocks is None else block_args(product, product.n)
    return {**product.args, **b, **strides, **product.epilogue.args}
