"""Matrix products on GPUs: tiles in local memory, of a size by how many the device runs at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.device.requires import Requires
from clrt.ir.cl_code import Define
from clrt.ir.symbolic_trace import pure
from clrt.kernels.gemm_problem import Epilogue, GemmProblem, merge
from clrt.kernels.spec import VEC8, KernelSpec, Launch, Scratch, launch
from clrt.kernels.sub_group import sub_group_of
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div

# T_RM, T_RN: of the largest tile; smaller ones are halves of it.
GPU = tuned(
    "gemm_gpu",
    {"T_RM": (4, 8), "T_RN": (4, 8), "T_TK": (8, 16, 32)},
    T_RM=8,
    T_RN=8,
    T_TK=16,
)
SIDE = 16
GPU_TILES = replace(requires.GPU, work_group_size=SIDE**2)
JOIN_CYCLES = 10_000
"""What `join_launch` takes, as a choice of parts counts it."""
_PAD = 4  # elements that rows of a slice are apart besides
_LEAST = 2  # rows and columns of a work-item
# Work-groups that a core should have, and that it should have of few rows, so that enough of B is
# on the way; and how much of K a part has at least, or the launch that joins the parts costs more
# than they save: an NVIDIA H200 takes 7 us for one, in which a work-group of few rows is through so
# much of K.
_GROUPS, _FEW_GROUPS = 2, 4
PART_K, FEW_PART_K = 512, 1024
_PARTS = (16, 12, 8, 6, 4, 3, 2)
# As many rows as a work-group has slices, which is as many as it takes at once.
FEW = tuned("few_rows_gpu", T_LANES=32, T_SLICES=8)
FEW_ROWS = FEW.defaults["T_SLICES"]


@dataclass(frozen=True)
class TileKernel:
    """A kernel of products.

    Attributes:
        size: Rows and columns of a work-group.
        local: Work-items of it.
    """

    spec: KernelSpec
    size: tuple[int, int]
    local: tuple[int, int, int]


@dataclass(frozen=True)
class FewRowsWay:
    """What the kernels for few rows of a product and of its parts have in common.

    Attributes:
        sub_group: The macro for the size of sub-groups.
        a_wide, b_wide: See `MatrixOperand.is_wide`.
    """

    items: Mapping[str, int]
    sub_group: Mapping[str, Define]
    a_wide: bool
    b_wide: bool

    @classmethod
    def of(cls, ctx: Lowering, a_wide: bool, b_wide: bool) -> FewRowsWay:
        """With the macros for a device."""
        return cls(ctx.tunables(FEW), sub_group_of(ctx.caps), a_wide, b_wide)

    def arguments(self, product: GemmProblem) -> dict[str, Any]:
        """Those that are not the product's."""
        return {"a": product.a_in_octets} if self.a_wide else {}


def emit_gpu(product: GemmProblem, ctx: Lowering) -> list[Launch]:
    """Tiles in local memory, or few rows against all of B; A and B are read in place.

    The kernels that are not taken are launched without work-groups: sizes change from call to call,
    and none may compile a kernel.

    Raises:
        UnsupportedError: As `emit_cpu`, or the device has too little local memory.
    """
    product.epilogue.check_vectors()
    if product.is_empty:
        return []
    tunables, units = ctx.tunables(GPU), ctx.caps.cores
    tiles = _fitting_tiles(tunables, ctx)
    launches, product = merge(product, ctx)
    way = FewRowsWay.of(ctx, product.a.is_wide, product.b.is_wide)
    made = [tile_defines(tile, tunables["T_TK"], ctx.caps) for tile in tiles]
    kernels = _kernels(product, tiles, made, way)
    few = product.m <= FEW_ROWS
    tile = best_tile(product.m, product.n, product.batches, units, *tiles[0])
    taken = len(tiles) if few else tile
    # Parts leave no unit idle, in the smallest tiles at that.
    shared = (
        (kernels[-1], _FEW_GROUPS * units, FEW_PART_K),
        (kernels[-2], _GROUPS * units, PART_K),
    )
    parts = _parts(product, *shared[0 if few else 1])
    most = max(_parts(replace(product, m=1), *each) for each in shared)
    own = way.arguments(product)
    launches += tile_launches(product, kernels, taken if parts == 1 else None, **own)
    if most > 1:
        sums = ctx.scratch(parts * product.m * product.n)
        share = replace(share_of_k(product, parts), y=sums, y_offset=0, epilogue=Epilogue())
        kernels = _kernels(share, tiles, made, way)
        launches += tile_launches(share, kernels, None if parts == 1 else taken)
        launches.append(join_launch(product, sums, parts))
    return launches


def _fitting_tiles(tunables: Mapping[str, int], ctx: Lowering) -> Sequence[tuple[int, int]]:
    """The tiles whose slices fit local memory, the largest first.

    Raises:
        UnsupportedError: Not even the smallest one does.
    """
    tiles = tiles_from(tunables["T_RM"], tunables["T_RN"])
    needs = [Requires(local_mem_bytes=tile_bytes(tile, tunables["T_TK"])) for tile in tiles]
    ctx.require(needs[-1])
    return [t for t, need in zip(tiles, needs, strict=True) if need.missing(ctx.caps) is None]


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
        groups = ceil_div(m, SIDE * rows) * ceil_div(n, SIDE * columns) * batches
        return max(groups, units) * tile_cycles(rows, columns)

    return min(range(len(tiles)), key=time)


def tile_cycles(rows: int, columns: int) -> float:
    """Cycles of a work-item for a step of K: products, and reads and bookkeeping besides.

    Source: what compilers for NVIDIA's GPUs make of the loop.
    """
    return rows * columns + (rows + columns) / 2 + 3


def tile_defines(tile: tuple[int, int], depth: int, caps: DeviceCaps) -> dict[str, Define]:
    """The macros of common/group_tile.clh.

    Args:
        tile: Rows and columns of a work-item.
    """
    return {"T_RM": tile[0], "T_RN": tile[1], "T_TK": depth, **sub_group_of(caps)}


def tile_bytes(tile: tuple[int, int], depth: int) -> int:
    """Local memory of a work-group, for slices of some depth.

    Args:
        tile: Rows and columns of a work-item.
    """
    return 4 * depth * sum(SIDE * r + _PAD for r in tile)


def _parts(product: GemmProblem, kernel: TileKernel, wanted: int, least: int) -> int:
    """Into how many parts K goes: as many as make so many work-groups."""
    if product.batches > 1 or product.level_rows is not None:
        return 1
    groups = prod(map(ceil_div, (product.m, product.n), kernel.size))
    step = VEC8 if product.a.is_wide or product.b.is_wide else 1
    return split_count(product.k, wanted // groups, step, least)


@pure
def split_count(k: int, wanted: int, step: int, least: int) -> int:
    """The most parts of one size, up to `wanted`, of at least so much, and a multiple of `step`."""
    fitting = (p for p in _PARTS if p <= wanted and k % (p * step) == 0 and k // p >= least)
    return next(fitting, 1)


def share_of_k(product: GemmProblem, parts: int) -> GemmProblem:
    """The parts of K as a batch."""
    k = product.k // parts
    a = replace(
        product.a, strides=(k * product.a.strides[-1], *product.a.strides[1:]), by_rows=False
    )
    b = replace(product.b, strides=(k * product.b.strides[-2], *product.b.strides[1:]))
    return replace(product, batch=(parts, 1), k=k, a=a, b=b)


def _kernels(
    product: GemmProblem,
    tiles: Sequence[tuple[int, int]],
    made: Sequence[Mapping[str, Define]],
    few: FewRowsWay,
) -> list[TileKernel]:
    """One for each tile, and last the one for few rows."""
    rows_of_b = product.level_rows
    in_lines = rows_of_b is None and product.b.strides[-1] == 1
    defines = {
        **product.epilogue.defines,
        "S_A_K_LAST": int(product.a.strides[-1] == 1),
        "S_B_N_LAST": int(in_lines),
        **product.b_defines,
    }
    found = []
    for (rows, columns), tile in zip(tiles, made, strict=True):
        spec = KernelSpec.of("matmul/gemm_gpu.cl", GPU.entry, **defines, **tile)
        found.append(TileKernel(spec, (SIDE * rows, SIDE * columns), (SIDE, SIDE, 1)))
    lanes, slices = few.items["T_LANES"], few.items["T_SLICES"]
    if rows_of_b is not None:
        defines["S_K_WHOLE"] = int(product.k % rows_of_b.word == 0)
    else:
        wide = {"S_A_WIDE": few.a_wide, "S_B_WIDE": few.b_wide}
        k_last = {"S_A_WIDE": product.a.strides[-1] == 1, "S_B_WIDE": not in_lines}
        defines |= {name: int(wide[name] and k_last[name]) for name in wide}
    macros = {**defines, **few.items, **few.sub_group}
    spec = KernelSpec.of("matmul/few_rows_gpu.cl", FEW.entry, **macros)
    local = (lanes // 2, 2 * slices, 1) if in_lines else (lanes, slices, 1)
    return [*found, TileKernel(spec, (slices, local[0] if in_lines else slices), local)]


def few_rows_kernel(product: GemmProblem, ctx: Lowering, a_wide: bool, b_wide: bool) -> TileKernel:
    """The one for up to FEW_ROWS rows.

    Args:
        a_wide, b_wide: See `MatrixOperand.is_wide`, of the whole product.
    """
    return _kernels(product, (), (), FewRowsWay.of(ctx, a_wide, b_wide))[-1]


def tile_launches(
    product: GemmProblem, kernels: Sequence[TileKernel], taken: int | None, **own: Any
) -> Iterator[Launch]:
    """The launches of kernels of which one is taken, or none: the others have no work-groups.

    Args:
        own: Arguments in place of the product's.
    """
    args = {**product.strided_args, **own}
    for index, kernel in enumerate(kernels):
        (rows, columns), (x, y, _) = kernel.size, kernel.local
        grid = (ceil_div(product.n, columns) * x, ceil_div(product.m, rows) * y, product.batches)
        size = grid if index == taken else (0, 0, 0)
        yield launch(kernel.spec, size, kernel.local, product.flops, **args)


def join_launch(product: GemmProblem, sums: Scratch, parts: int) -> Launch:
    """The launch that adds up the parts of K; without work-groups if there is one."""
    kernel = KernelSpec.of("matmul/join_parts.cl", "join_parts", **product.epilogue.defines)
    args = {"y": product.result, "sums": sums, "parts": parts, "M": product.m, "N": product.n}
    args |= {"d1": product.batch[1], "batches": product.batches} | product.epilogue.args
    size = (product.n, product.m, product.batches)
    return launch(kernel, size if parts > 1 else (0, 0, 0), None, parts * prod(size), **args)
