"""GEMM on GPUs: tiles in local memory, whose size is chosen so that all compute units have work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.device.requires import Requires
from clrt.ir.cl_code import Define
from clrt.ir.symbolic_trace import pure
from clrt.kernels.gemm_problem import Epilogue, GemmProblem, merge
from clrt.kernels.quantized_rows_gpu import PackedQuantizedRows
from clrt.kernels.spec import VEC8, KernelSpec, Launch, Scratch, launch
from clrt.kernels.sub_group import sub_group_of
from clrt.kernels.thresholds import Thresholds, Tunable, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

# T_RM, T_RN: rows and columns per work-item of the largest tile, which smaller tiles halve. T_TK:
# elements of K per slice in local memory.
GPU = tuned(
    "gemm_gpu",
    {"T_RM": (4, 8), "T_RN": (4, 8), "T_TK": (8, 16, 32)},
    T_RM=8,
    T_RN=8,
    T_TK=16,
)
SIDE = 16
"""Work-items along each side of a work-group."""
GPU_TILES = replace(requires.GPU, work_group_size=SIDE**2)
# Padding of each row of a slice in local memory, in elements, against bank conflicts.
_PAD = 4
# Numbers of K splits to choose from.
_SPLITS = (16, 12, 8, 6, 4, 3, 2)
# The small-M kernel: work-groups of T_LANES x T_SLICES. T_SLICES is also the number of rows of A
# that a work-group multiplies at a time.
FEW = tuned(
    "few_rows_gpu",
    T_LANES=Tunable(32, "work-items", "Work-items along K whose loads coalesce."),
    T_SLICES=Tunable(8, "rows of A", "Rows of a tile; with T_LANES the size of a work-group."),
)
FEW_ROWS = FEW.defaults["T_SLICES"]
"""Maximum number of rows of A for the small-M kernel."""


class GpuGemmSplits(Thresholds):
    """Thresholds of the tiles and splits of K of a GEMM on GPUs.

    GEMMs on matrix units share the last three, convolutions the last one.
    """

    tile_side: int = tunable(
        2,
        "rows or columns",
        "Minimum per work-item of the smallest tile: smaller ones mostly load.",
    )
    groups: int = tunable(
        2, "work-groups per core", "Target of a split of K by tiles, so that every core has work."
    )
    few_groups: int = tunable(
        4,
        "work-groups per core",
        "Target of a split of K by the small-M kernel, which needs more reads of B in flight.",
    )
    part_k: int = tunable(
        512,
        "elements of K",
        "Minimum per split by tiles: below it, summing the splits costs more than they save.",
    )
    few_part_k: int = tunable(
        1024,
        "elements of K",
        "Minimum per split by the small-M kernel, as for part_k: summing the splits takes 7 us on "
        "an NVIDIA H200, in which a work-group processes as many elements.",
    )
    join_cycles: int = tunable(
        10_000,
        "cycles",
        "Estimated time of the launch that sums the splits, to choose their number.",
    )

    group: ClassVar = "gemm_gpu_splits"


@dataclass(frozen=True)
class TileKernel:
    """A GEMM kernel for one tile size.

    Attributes:
        spec: The kernel.
        size: Rows and columns of the result per work-group.
        local: Work-group size.
    """

    spec: KernelSpec
    size: tuple[int, int]
    local: tuple[int, int, int]


@dataclass(frozen=True)
class SmallMConfig:
    """Configuration of the small-M kernel, shared by a GEMM and its splits of the summed axis.

    Attributes:
        items: Tunables T_LANES and T_SLICES.
        sub_group: The macro that sets the sub-group size; empty to let the compiler choose.
        a_wide: Whether A can be read in vectors of 8 (`MatrixOperand.is_wide`).
        b_wide: Whether B can be read in vectors of 8.
    """

    items: Mapping[str, int]
    sub_group: Mapping[str, Define]
    a_wide: bool
    b_wide: bool

    @classmethod
    def of(cls, ctx: Lowering, a_wide: bool, b_wide: bool) -> SmallMConfig:
        """Returns the configuration of the small-M kernel for the device of `ctx`.

        Args:
            a_wide: Whether A can be read in vectors of 8 (`MatrixOperand.is_wide`).
            b_wide: Whether B can be read in vectors of 8.
        """
        return cls(ctx.tunables(FEW), sub_group_of(ctx.caps), a_wide, b_wide)

    def arguments(self, product: GemmProblem) -> dict[str, Any]:
        """Returns the arguments that replace some of `GemmProblem.strided_args`.

        Returns:
            {"a": A in vectors of 8} if the kernel can read A in vectors of 8; else {}.
        """
        return {"a": product.a_in_octets} if self.a_wide else {}


def emit_gpu(product: GemmProblem, ctx: Lowering) -> list[Launch]:
    """Returns launches of a GEMM by tiles in local memory, or by the small-M kernel.

    A and B are read in place. There is a launch of each kernel at every shape, but only the launch
    of the fastest kernel has work-groups. So a new shape needs no compilation.

    Raises:
        UnsupportedError: The epilogue needs other types than float32, or has more than two batch
            axes; or the device has too little local memory.
    """
    product.epilogue.check_vectors()
    if product.is_empty:
        return []
    tunables, units, shares = ctx.tunables(GPU), ctx.caps.cores, ctx.thresholds(GpuGemmSplits)
    tiles = _fitting_tiles(tunables, shares.tile_side, ctx)
    launches, product = merge(product, ctx)
    config = SmallMConfig.of(ctx, product.a.is_wide, product.b.is_wide)
    defines = [tile_defines(tile, tunables["T_TK"], ctx.caps) for tile in tiles]
    kernels = _kernels(product, tiles, defines, config)
    few_rows = product.m <= FEW_ROWS
    tile = best_tile(
        product.m, product.n, product.batches, units, *tiles[0], least=shares.tile_side
    )
    chosen = len(tiles) if few_rows else tile
    # Split-K occupies all compute units. It uses the small-M kernel or the smallest tile.
    split_options = (
        (kernels[-1], shares.few_groups * units, shares.few_part_k),
        (kernels[-2], shares.groups * units, shares.part_k),
    )
    splits = _splits(product, *split_options[0 if few_rows else 1])
    max_splits = max(_splits(replace(product, m=1), *option) for option in split_options)
    args = config.arguments(product)
    launches += tile_launches(product, kernels, chosen if splits == 1 else None, **args)
    if max_splits > 1:
        sums = ctx.scratch(splits * product.m * product.n)
        partial = replace(share_of_k(product, splits), y=sums, y_offset=0, epilogue=Epilogue())
        kernels = _kernels(partial, tiles, defines, config)
        launches += tile_launches(partial, kernels, None if splits == 1 else chosen)
        launches.append(join_launch(product, sums, splits))
    return launches


def _fitting_tiles(
    tunables: Mapping[str, int], least: int, ctx: Lowering
) -> Sequence[tuple[int, int]]:
    """Returns the GEMM tiles whose slices fit local memory, the largest first.

    Args:
        tunables: Tunables of the GEMM kernel.
        least: Minimum rows and columns per work-item.

    Returns:
        (rows, columns) per work-item of each tile.

    Raises:
        UnsupportedError: The smallest tile does not fit.
    """
    tiles = tiles_from(tunables["T_RM"], tunables["T_RN"], least)
    requirements = [Requires(local_mem_bytes=tile_bytes(tile, tunables["T_TK"])) for tile in tiles]
    ctx.require(requirements[-1])
    pairs = zip(tiles, requirements, strict=True)
    return [tile for tile, requirement in pairs if requirement.missing(ctx.caps) is None]


def tiles_from(rows: int, columns: int, least: int) -> tuple[tuple[int, int], ...]:
    """Returns (rows, columns) per work-item of each GEMM tile: the largest one, then its halves.

    Args:
        rows: Rows per work-item of the largest tile.
        columns: Columns per work-item of the largest tile.
        least: Minimum rows and columns per work-item.
    """
    tiles = [(rows, columns)]
    while min(tiles[-1]) >= 2 * max(least, 1):
        tiles.append((tiles[-1][0] // 2, tiles[-1][1] // 2))
    return tuple(tiles)


@pure
def best_tile(
    m: int, n: int, batches: int, units: int, rows: int, columns: int, *, least: int
) -> int:
    """Returns the index of the fastest GEMM tile, among those that `tiles_from` returns.

    Large tiles read less memory; small tiles leave no compute unit idle.

    Args:
        m: Rows of the result.
        n: Columns of the result.
        batches: Number of matrices.
        units: Compute units of the device.
        rows: Rows per work-item of the largest tile.
        columns: Columns per work-item of the largest tile.
        least: Minimum rows and columns per work-item.
    """
    tiles = tiles_from(rows, columns, least)

    def time(index: int) -> float:
        rows, columns = tiles[index]
        groups = ceil_div(m, SIDE * rows) * ceil_div(n, SIDE * columns) * batches
        return max(groups, units) * tile_cycles(rows, columns)

    return min(range(len(tiles)), key=time)


def tile_cycles(rows: int, columns: int) -> float:
    """Returns the clock cycles that a GEMM work-item takes per element of the summed axis.

    Args:
        rows: Rows of the result per work-item.
        columns: Columns of the result per work-item.

    Source: the kernel's loop as compiled for NVIDIA's GPUs.
    """
    return rows * columns + (rows + columns) / 2 + 3


def tile_defines(tile: tuple[int, int], depth: int, caps: DeviceCaps) -> dict[str, Define]:
    """Returns the macros of a GEMM tile, which common/group_tile.clh declares.

    Args:
        tile: Rows and columns of the result per work-item.
        depth: Elements of K per slice.
    """
    return {"T_RM": tile[0], "T_RN": tile[1], "T_TK": depth, **sub_group_of(caps)}


def tile_bytes(tile: tuple[int, int], depth: int) -> int:
    """Returns the local memory of a GEMM work-group in bytes.

    Args:
        tile: Rows and columns of the result per work-item.
        depth: Elements of K per slice.
    """
    return 4 * depth * sum(SIDE * r + _PAD for r in tile)


def _splits(product: GemmProblem, kernel: TileKernel, target_groups: int, min_k: int) -> int:
    """Returns the number of splits of K, the summed axis, for about `target_groups` work-groups.

    Returns 1 for batches of matrices and for low-bit weights.

    Args:
        kernel: The kernel for the size of each split.
        target_groups: Number of work-groups to aim for.
        min_k: Minimum elements of K per split.
    """
    if product.batches > 1 or product.weights is not None:
        return 1
    groups = prod(map(ceil_div, (product.m, product.n), kernel.size))
    step = VEC8 if product.a.is_wide or product.b.is_wide else 1
    return split_count(product.k, target_groups // groups, step, min_k)


@pure
def split_count(k: int, max_splits: int, step: int, min_k: int) -> int:
    """Returns the largest possible number of equal splits of K; 1 if K cannot be split.

    Args:
        k: Size of K, the summed axis.
        max_splits: Maximum number of splits.
        step: Elements of K per split must be a multiple of this.
        min_k: Minimum elements of K per split.
    """
    possible = (s for s in _SPLITS if s <= max_splits and k % (s * step) == 0 and k // s >= min_k)
    return next(possible, 1)


def share_of_k(product: GemmProblem, parts: int) -> GemmProblem:
    """Returns the GEMM that computes partial products: its batch axis numbers the splits of K.

    Args:
        product: The whole GEMM, of single matrices.
        parts: Number of splits of K, the summed axis; a divisor of its size.
    """
    k = product.k // parts
    a = replace(
        product.a, strides=(k * product.a.strides[-1], *product.a.strides[1:]), by_rows=False
    )
    b = replace(product.b, strides=(k * product.b.strides[-2], *product.b.strides[1:]))
    return replace(product, batch=(parts, 1), k=k, a=a, b=b)


def _kernels(
    product: GemmProblem,
    tiles: Sequence[tuple[int, int]],
    tile_macros: Sequence[Mapping[str, Define]],
    config: SmallMConfig,
) -> list[TileKernel]:
    """Returns the GEMM kernels: one per tile, then the small-M kernel.

    Args:
        tiles: (rows, columns) per work-item of each tile.
        tile_macros: Macros of each tile, in the same order.
        config: Configuration of the small-M kernel.
    """
    weights = product.weights
    n_last = weights is None and product.b.strides[-1] == 1
    defines = {
        **product.epilogue.defines,
        "S_A_K_LAST": int(product.a.strides[-1] == 1),
        "S_B_N_LAST": int(n_last),
        **product.b_defines,
    }
    kernels = []
    for (rows, columns), macros in zip(tiles, tile_macros, strict=True):
        spec = KernelSpec.of("matmul/gemm_gpu.cl", GPU.entry, **defines, **macros)
        kernels.append(TileKernel(spec, (SIDE * rows, SIDE * columns), (SIDE, SIDE, 1)))
    lanes, slices = config.items["T_LANES"], config.items["T_SLICES"]
    if weights is not None:
        assert isinstance(weights, PackedQuantizedRows)
        defines["S_K_WHOLE"] = int(product.k % weights.word == 0)
    else:
        wide = {"S_A_WIDE": config.a_wide, "S_B_WIDE": config.b_wide}
        k_last = {"S_A_WIDE": product.a.strides[-1] == 1, "S_B_WIDE": not n_last}
        defines |= {name: int(wide[name] and k_last[name]) for name in wide}
    small_m_macros = {**defines, **config.items, **config.sub_group}
    spec = KernelSpec.of("matmul/few_rows_gpu.cl", FEW.entry, **small_m_macros)
    local = (lanes // 2, 2 * slices, 1) if n_last else (lanes, slices, 1)
    return [*kernels, TileKernel(spec, (slices, local[0] if n_last else slices), local)]


def few_rows_kernel(product: GemmProblem, ctx: Lowering, a_wide: bool, b_wide: bool) -> TileKernel:
    """Returns the small-M kernel, for up to FEW_ROWS rows of A.

    Args:
        product: The GEMM, or its splits of K as a batch.
        a_wide: `MatrixOperand.is_wide` of A of the whole GEMM, before K is split.
        b_wide: `MatrixOperand.is_wide` of B of the whole GEMM, before K is split.
    """
    return _kernels(product, (), (), SmallMConfig.of(ctx, a_wide, b_wide))[-1]


def tile_launches(
    product: GemmProblem, kernels: Sequence[TileKernel], chosen: int | None, **overrides: Any
) -> Iterator[Launch]:
    """Yields a launch of each GEMM kernel; only the chosen kernel's launch has work-groups.

    Args:
        kernels: The kernels.
        chosen: Index of the kernel to compute with; None to compute nothing.
        overrides: Arguments that replace those of `GemmProblem.strided_args`.
    """
    args = {**product.strided_args, **overrides}
    for index, kernel in enumerate(kernels):
        (rows, columns), (x, y, _) = kernel.size, kernel.local
        grid = (ceil_div(product.n, columns) * x, ceil_div(product.m, rows) * y, product.batches)
        size = grid if index == chosen else (0, 0, 0)
        yield launch(kernel.spec, size, kernel.local, product.flops, **args)


def join_launch(product: GemmProblem, sums: Scratch, parts: int) -> Launch:
    """Returns the launch that sums the splits of K and applies the epilogue.

    Args:
        sums: Partial products, float32 [parts, batch, rows, columns].
        parts: Number of splits; if 1, the launch has no work-groups.
    """
    kernel = KernelSpec.of("matmul/reduce_split_k.cl", "join_parts", **product.epilogue.defines)
    args = {"y": product.result, "sums": sums, "parts": parts, "M": product.m, "N": product.n}
    args |= {"d1": product.batch[1], "batches": product.batches} | product.epilogue.args
    size = (product.n, product.m, product.batches)
    return launch(kernel, size if parts > 1 else (0, 0, 0), None, parts * prod(size), **args)
