"""GEMM on matrix units of GPUs, such as tensor cores (kernels_cl/common/gpu_unit.clh).

Float32 operands are split into several bfloat16 terms each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar

from clrt.device import gpu_matrix_shapes, requires
from clrt.device.caps import DeviceCaps, MatrixShape
from clrt.device.requires import Requires
from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Code, Define
from clrt.ir.dtypes import FLOAT_STORAGES, DType
from clrt.ir.graph import Node
from clrt.ir.symbolic_trace import pure
from clrt.kernels.gemm_gpu import (
    FEW_ROWS,
    GpuGemmSplits,
    TileKernel,
    few_rows_kernel,
    join_launch,
    share_of_k,
    split_count,
    tile_launches,
)
from clrt.kernels.gemm_problem import Epilogue, GemmProblem, merge
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.thresholds import Thresholds, Tunable, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

# T_M, T_N: rows and columns of the largest tile of a work-group. T_ITEMS, T_SPLIT_ITEMS: work-group
# size without and with operands split into terms.
UNIT = tuned(
    "gemm_unit_gpu",
    {"T_ITEMS": (128, 256), "T_SPLIT_ITEMS": (128, 256)},
    T_M=Tunable(128, "rows", "Rows of the tile of a work-group: more reuse, fewer work-groups."),
    T_N=Tunable(128, "columns", "Columns of the tile of a work-group, as for T_M."),
    T_ITEMS=256,
    T_SPLIT_ITEMS=Tunable(256, "work-items", "T_ITEMS if operands are split into terms."),
)
_ITEMS = "T_ITEMS", "T_SPLIT_ITEMS"
GPU_UNIT = replace(requires.GPU, work_group_size=UNIT.defaults["T_ITEMS"])
# Elements of K per slice.
_DEPTH = 32
# Slices of K in local memory at a time, on NVIDIA's units if no operand is split into terms: the
# next slice loads while one is multiplied.
_SLICES = 2
# Minimum number of rows per tile: one block of each wave, stacked.
_MIN_TILE_ROWS = 32
# Elements of B that a work-item of the small-M kernel reads at a time.
_READ = 4
# Number of bfloat16 terms per operand, by dtype.
_TERMS = {DType.FLOAT32: 3, DType.FLOAT16: 2, DType.BFLOAT16: 1}
# Number of terms of B -> products of terms per multiply-add, with A in three terms.
_PRODUCTS = {3: 6, 2: 5, 1: 3}
# Work-items that execute one matrix instruction together.
_LANES = {"mma": 32, "wmma": 32, "wmma_12": 32, "mfma": 64, "dpas_8": 8, "dpas_16": 16}
_MORE_REGISTERS = Code("-cl-intel-256-GRF-per-thread")
# Values of the macro UNIT (common/gpu_unit.clh).
_UNIT_CODES = {name: code for code, name in enumerate(_LANES, 1)}


class MatrixUnitThresholds(Thresholds):
    """Speed of a GPU's matrix unit, and the minimum speed for which it is used."""

    percent: int = tunable(
        200,
        "multiply-adds",
        "16-bit multiply-adds of the unit in the time of 100 float32 multiply-adds.",
    )
    worth_percent: int = tunable(
        120,
        "multiply-adds",
        "Minimum of percent divided by the number of 16-bit multiply-adds that stand for one "
        "multiply-add of the GEMM, for which the unit is used.",
    )

    group: ClassVar = "gpu_unit_gains"


class MatrixTileCosts(Thresholds):
    """Cost model of GEMM tiles on matrix units, and of the small-M kernel in place of them."""

    groups: int = tunable(
        2, "work-groups per core", "Target of a split of K, so that every core has work."
    )
    line: int = tunable(
        32,
        "result elements",
        "Estimated time to load one row or column of a tile, in the time of a result element.",
    )
    few_tiles: int = tunable(
        8,
        "tiles of rows",
        "Maximum for which the small-M kernel is considered: it rereads B for each.",
    )
    per_cycle: int = tunable(
        128, "multiply-adds", "Estimated float32 multiply-adds per cycle of a core."
    )
    wait: int = tunable(600, "cycles", "Estimated latency of memory.")
    few_cost: int = tunable(
        3,
        "multiply-adds",
        "Estimated time of a multiply-add of the small-M kernel, which also reads A, in the time "
        "of one with A in registers.",
    )

    group: ClassVar = "gemm_unit_gpu_costs"


@dataclass(frozen=True)
class MatrixUnitConfig:
    """A matrix unit and the number of terms that operands are split into.

    Attributes:
        unit: Shape and instructions of the unit.
        parts: Terms per element of A, and per element of B.
    """

    unit: MatrixShape
    parts: tuple[int, int] = (1, 1)

    @property
    def products(self) -> int:
        """Multiply-adds of the matrix unit per multiply-add of the GEMM."""
        return _products(self.parts)

    @property
    def lanes(self) -> int:
        """Number of work-items that execute one matrix instruction together (a sub-group)."""
        return _LANES[gpu_matrix_shapes.instructions_of(self.unit)]

    @property
    def options(self) -> tuple[Code, ...]:
        """Extra compiler options: more registers on Intel GPUs, to avoid spills; else ()."""
        return (
            (_MORE_REGISTERS,)
            if self.unit in (*gpu_matrix_shapes.DPAS_8, *gpu_matrix_shapes.DPAS_16)
            else ()
        )

    @property
    def defines(self) -> dict[str, Define]:
        """Macros of common/gpu_unit.clh: the matrix unit, and the terms per element of A and B."""
        macros: dict[str, Define] = {
            "UNIT": _UNIT_CODES[gpu_matrix_shapes.instructions_of(self.unit)],
            "OPERAND": gpu_matrix_shapes.OPERANDS.index(self.unit.operands) + 1,
            "TERMS_A": self.parts[0],
            "TERMS_B": self.parts[1],
        }
        return macros | ({"MMA_IN_C": 1} if gpu_matrix_shapes.is_in_c(self.unit) else {})


def products_of(kernel: KernelSpec) -> int:
    """Returns the matrix-unit products per product of the GEMM; 0 if a kernel uses none."""
    if kernel.entry != UNIT.entry:
        return 0
    defines = dict(kernel.defines)
    return _products((int(defines["TERMS_A"]), int(defines["TERMS_B"])))


def bytes_in_flight(kernel: KernelSpec) -> float:
    """Returns the bytes of A and B that a work-item loads at a time, per slice of the summed axis.

    Args:
        kernel: A matrix-unit kernel.
    """
    defines = dict(kernel.defines)
    lines = ("T_M", "A_STORAGE"), ("T_N", "B_STORAGE")
    nbytes = sum(int(defines[n]) * (4 if defines[s] == "plain" else 2) for n, s in lines)
    return nbytes * _DEPTH / int(defines[_ITEMS[defines["TERMS_A"] != "1"]])


def _products(parts: tuple[int, int]) -> int:
    return 1 if parts == (1, 1) else _PRODUCTS[parts[1]]


def reject_unit(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why `emit_unit` cannot run a node on a device; None if it may.

    If the result is None, `emit_unit` itself may still reject the node.
    """
    if node.arg(0).dtype not in FLOAT_STORAGES:
        return "for floats of at most 32 bits"
    has_one = any(map(_is_known, caps.matrix_shapes))
    return None if has_one else "needs a matrix unit for floats of 16 bits"


def _is_known(unit: MatrixShape) -> bool:
    return gpu_matrix_shapes.instructions_of(unit) in _LANES


def emit_unit(product: GemmProblem, ctx: Lowering) -> list[Launch]:
    """Returns the launches of a GEMM on a GPU's matrix unit.

    A and B are read in place. There is a launch of each kernel at every shape, but only the launch
    of the fastest kernel has work-groups. So a new shape needs no compilation.

    Raises:
        UnsupportedError: The device has no matrix unit for the operands, or none that is faster; it
            has too little local memory; or the epilogue has more than two batch axes.
    """
    config = _unit_config(product, ctx)
    if product.is_empty:
        return []
    tunables, cores = ctx.tunables(UNIT), ctx.caps.cores
    costs, shares = ctx.thresholds(MatrixTileCosts), ctx.thresholds(GpuGemmSplits)
    sizes = config.products, tunables["T_M"], tunables["T_N"]
    tiles = tiles_of(*sizes)
    lines = sum(n * terms for n, terms in zip(tiles[0], config.parts, strict=True))
    slices = _SLICES if config.products == 1 and config.unit in gpu_matrix_shapes.MMA else 1
    ctx.require(Requires(local_mem_bytes=2 * _DEPTH * lines * slices))
    launches, product = merge(product, ctx)
    items = {name: tunables[name] for name in _ITEMS}
    builder = _KernelBuilder(config, items, product.a.is_wide, product.b.is_wide)
    kernels = [builder.kernel(product, tile) for tile in tiles]
    chosen = best_of(product.m, product.n, product.batches, cores, *sizes, line=costs.line)
    is_float32 = product.dtype is product.y.dtype is DType.FLOAT32 and product.epilogue.vectorises
    args = builder.arguments(product)
    splits = max_splits = 1
    if is_float32:
        kernels.append(few_rows_kernel(product, ctx, builder.a_wide, builder.b_wide))
        small_m = _uses_small_m(product, kernels, config, ctx)
        chosen = len(tiles) if small_m else chosen
        # Split-K occupies all cores. It uses the small-M kernel or the smallest tile.
        split_options = (kernels[-1].size, shares.few_part_k), (kernels[-2].size, shares.part_k)
        target_groups = costs.groups * cores
        splits = _splits(product, target_groups, *split_options[0 if small_m else 1])
        max_splits = max(
            _splits(replace(product, m=1), target_groups, *option) for option in split_options
        )
    launches += tile_launches(product, kernels, chosen if splits == 1 else None, **args)
    if max_splits > 1:
        sums = ctx.scratch(splits * product.m * product.n)
        partial = replace(share_of_k(product, splits), y=sums, y_offset=0, epilogue=Epilogue())
        kernels = [builder.kernel(partial, tile) for tile in tiles]
        kernels.append(few_rows_kernel(partial, ctx, builder.a_wide, builder.b_wide))
        launches += tile_launches(partial, kernels, None if splits == 1 else chosen)
        launches.append(join_launch(product, sums, splits))
    return launches


def _splits(product: GemmProblem, target_groups: int, size: tuple[int, int], min_k: int) -> int:
    """Returns the number of splits of K, the summed axis, that gives each core work.

    Args:
        target_groups: Number of work-groups to aim for.
        size: Rows and columns of the result per work-group.
        min_k: Minimum elements of K per split.
    """
    return _num_splits(
        product.m, product.n, product.k, product.batches, target_groups, *size, min_k
    )


def _num_splits(
    m: int, n: int, k: int, batches: int, target_groups: int, rows: int, columns: int, min_k: int
) -> int:
    """Returns the number of equal splits of K that gives each core work.

    A split is a multiple of `_DEPTH` elements long. Returns 1 for batches of matrices, or if no
    number of splits fits.

    Args:
        m: Rows of the result.
        n: Columns of the result.
        k: Size of K, the summed axis.
        batches: Number of matrices.
        target_groups: Number of work-groups to aim for.
        rows: Rows of the result per work-group.
        columns: Columns of the result per work-group.
        min_k: Minimum elements of K per split.
    """
    if batches > 1:
        return 1
    groups = ceil_div(m, rows) * ceil_div(n, columns)
    return split_count(k, target_groups // groups, _DEPTH, min_k)


def _uses_small_m(
    product: GemmProblem, kernels: Sequence[TileKernel], config: MatrixUnitConfig, ctx: Lowering
) -> int:
    """Returns 1 if the small-M kernel is faster than the smallest matrix-unit tile, else 0.

    Args:
        kernels: Kernels of the GEMM: last but one the kernel of the smallest tile, last the small-M
            kernel.
        config: Matrix unit, and numbers of terms that operands are split into.
    """
    tile, small_m = kernels[-2:]
    costs, shares = ctx.thresholds(MatrixTileCosts), ctx.thresholds(GpuGemmSplits)
    sums = prod(tile.size) + costs.line * sum(tile.size)
    percent = ctx.thresholds(MatrixUnitThresholds).percent
    cycles = _DEPTH * sums * config.products * 100 // (percent * costs.per_cycle)
    sizes = product.m, product.n, product.k, product.batches, ctx.caps.cores
    few = small_m.size[1], prod(small_m.local)
    return few_is_best(*sizes, *tile.size, cycles, *few, costs=costs, shares=shares)


@pure
def few_is_best(
    m: int,
    n: int,
    k: int,
    batches: int,
    cores: int,
    below: int,
    beside: int,
    cycles: int,
    columns: int,
    items: int,
    *,
    costs: MatrixTileCosts,
    shares: GpuGemmSplits,
) -> int:
    """Returns 1 if the small-M kernel is faster than the smallest matrix-unit tile, else 0.

    The small-M kernel can be faster if tiles leave cores idle: it has more work-groups, which
    compute fewer elements each.

    Args:
        m: Rows of the result.
        n: Columns of the result.
        k: Size of K, the summed axis.
        batches: Number of matrices.
        cores: Cores of the device.
        below: Rows of the smallest tile.
        beside: Columns of the smallest tile.
        cycles: Clock cycles in which a core computes a slice of the smallest tile.
        columns: Columns of the result per work-group of the small-M kernel.
        items: Work-items per work-group of the small-M kernel.
        costs: Cost model.
        shares: Thresholds of splits of K.
    """
    if not FEW_ROWS < m <= costs.few_tiles * FEW_ROWS:
        return int(m <= FEW_ROWS)

    def groups_and_cycles(
        rows: int, columns: int, min_k: int, depth: int, cycles: int
    ) -> tuple[int, int]:
        splits = _num_splits(m, n, k, batches, costs.groups * cores, rows, columns, min_k)
        groups = ceil_div(m, rows) * ceil_div(n, columns) * batches * splits
        slice_cycles = max(ceil_div(groups, cores) * cycles, costs.wait)
        joining = shares.join_cycles if splits > 1 else 0
        return groups, ceil_div(k, splits * depth) * slice_cycles + joining

    read = _READ * items
    small_m_cycles = read * FEW_ROWS * costs.few_cost // costs.per_cycle
    groups, tile_total = groups_and_cycles(below, beside, shares.part_k, _DEPTH, cycles)
    _, small_m_total = groups_and_cycles(
        FEW_ROWS, columns, shares.few_part_k, read // columns, small_m_cycles
    )
    return int(groups < cores and small_m_total < tile_total)


def _unit_config(product: GemmProblem, ctx: Lowering) -> MatrixUnitConfig:
    """Returns the matrix unit to use for a GEMM, and into how many terms operands are split.

    Raises:
        UnsupportedError: The device has no matrix unit for the operands' dtypes, or multiplies
            float32 as fast without it.
    """
    b = product.right
    a = b if product.a_dtype is b else product.dtype
    if product.weights is not None or b not in _TERMS or (a is not b and a is not DType.FLOAT32):
        raise UnsupportedError(f"no product of {a} and {b} by a matrix unit")
    splits = a is DType.FLOAT32
    operands = str(DType.BFLOAT16 if splits else a)
    fitting = (s for s in sorted(ctx.caps.matrix_shapes) if _is_known(s))
    unit = next((s for s in fitting if s.operands == operands), None)
    if unit is None:
        raise UnsupportedError(f"needs a matrix unit for {operands}")
    config = MatrixUnitConfig(unit, (_TERMS[a], _TERMS[b]) if splits else (1, 1))
    gains = ctx.thresholds(MatrixUnitThresholds)
    if gains.percent < gains.worth_percent * config.products:
        raise UnsupportedError(f"multiply-adds are as fast as {config.products} products by a unit")
    return config


def tiles_of(products: int, rows: int, columns: int) -> tuple[tuple[int, int], ...]:
    """Returns (rows, columns) per work-group of each matrix-unit tile, the largest first.

    Operands split into terms need more local memory, so their largest tile has half the columns.

    Args:
        products: Matrix-unit products per product of the GEMM; 1 if operands are not split.
        rows: Rows of the largest tile.
        columns: Columns of the largest tile, if operands are not split.
    """
    narrow = columns // 2
    tiles = [(rows, columns if products == 1 else narrow), (rows // 2, narrow), (rows // 4, narrow)]
    return tuple(tile for tile in tiles if tile[0] >= _MIN_TILE_ROWS)


@pure
def best_of(
    m: int,
    n: int,
    batches: int,
    device_units: int,
    products: int,
    rows: int,
    columns: int,
    *,
    line: int,
) -> int:
    """Returns the index of the fastest matrix-unit tile, among those that `tiles_of` returns.

    Large tiles read less memory; small tiles leave no compute unit idle.

    Args:
        m: Rows of the result.
        n: Columns of the result.
        batches: Number of matrices.
        device_units: Compute units of the device.
        products: Matrix-unit products per product of the GEMM; 1 if operands are not split.
        rows: Rows of the largest tile.
        columns: Columns of the largest tile, if operands are not split.
        line: `MatrixTileCosts.line`.
    """
    tiles = tiles_of(products, rows, columns)

    def time(index: int) -> int:
        below, beside = tiles[index]
        groups = ceil_div(m, below) * ceil_div(n, beside) * batches
        return max(groups, device_units) * (below * beside + line * (below + beside))

    return min(range(len(tiles)), key=time)


@dataclass(frozen=True)
class _KernelBuilder:
    """Builds the kernels of one GEMM for different tiles.

    Attributes:
        config: Matrix unit, and numbers of terms that operands are split into.
        items: Work-group sizes by tunable (T_ITEMS, T_SPLIT_ITEMS).
        a_wide: Whether A can be read in vectors of 8 (`MatrixOperand.is_wide`).
        b_wide: Whether B can be read in vectors of 8.
    """

    config: MatrixUnitConfig
    items: Mapping[str, int]
    a_wide: bool = False
    b_wide: bool = False

    def kernel(self, product: GemmProblem, tile: tuple[int, int]) -> TileKernel:
        """Returns the matrix-unit kernel of a GEMM for one tile.

        Args:
            tile: Rows and columns of the result per work-group.
        """
        defines = {
            **product.epilogue.defines,
            **product.b_defines,
            **self.config.defines,
            "A_T": product.dtype.cl,
            "A_STORAGE": product.dtype.storage,
            "Y_T": product.y.dtype.cl,
            "Y_STORAGE": product.y.dtype.storage,
            "OUT_T": product.y.dtype.compute,
            "S_A_K_LAST": int(product.a.strides[-1] == 1),
            "S_B_N_LAST": int(product.b.strides[-1] == 1),
            "S_A_WIDE": int(self.a_wide),
            "S_B_WIDE": int(self.b_wide),
            "T_M": tile[0],
            "T_N": tile[1],
            **self.items,
        }
        spec = KernelSpec.of("matmul/gemm_unit_gpu.cl", UNIT.entry, **defines)
        spec = spec.compiled(spec.opencl_c, *self.config.options)
        lanes = self.config.lanes
        items = self.items[_ITEMS[self.config.products > 1]]
        return TileKernel(spec, tile, (lanes, items // lanes, 1))

    def arguments(self, product: GemmProblem) -> dict[str, object]:
        """Returns by name the arguments that replace some of `GemmProblem.strided_args`.

        Returns:
            {"a": A in vectors of 8} if the kernel can read A in vectors of 8; else {}.
        """
        return {"a": product.a_in_octets} if self.a_wide else {}


def plain_kernel(product: GemmProblem, config: MatrixUnitConfig) -> TileKernel:
    """Returns the matrix-unit kernel of the smallest tile, for operands of any alignment."""
    tunables = UNIT.defaults
    tile = tiles_of(config.products, tunables["T_M"], tunables["T_N"])[-1]
    return _KernelBuilder(config, {name: tunables[name] for name in _ITEMS}).kernel(product, tile)
