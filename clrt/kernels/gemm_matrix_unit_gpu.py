"""Matrix products by the matrix units of GPUs (kernels_cl/common/gpu_unit.clh)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    FEW_PART_K,
    FEW_ROWS,
    JOIN_CYCLES,
    PART_K,
    TileKernel,
    few_rows_kernel,
    join_launch,
    share_of_k,
    split_count,
    tile_launches,
)
from clrt.kernels.gemm_problem import Epilogue, GemmProblem, merge
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.thresholds import Thresholds
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div

# T_M, T_N: rows and columns of the largest tile. T_ITEMS, T_SPLIT_ITEMS: work-items of a group,
# of numbers that the unit takes as they are and of those that are split.
UNIT = tuned(
    "gemm_unit_gpu",
    {"T_ITEMS": (128, 256), "T_SPLIT_ITEMS": (128, 256)},
    T_M=128,
    T_N=128,
    T_ITEMS=256,
    T_SPLIT_ITEMS=256,
)
_ITEMS = "T_ITEMS", "T_SPLIT_ITEMS"
GPU_UNIT = replace(requires.GPU, work_group_size=UNIT.defaults["T_ITEMS"])
_DEPTH = 32  # of a slice
_SLICES = 2  # in local memory of NVIDIA's, of numbers that are not split
_GROUPS = 2  # that a unit of the device should have
_LEAST_ROWS = 32  # of a tile: those of all waves below each other
# Bringing a row or a column of a tile takes as long as so many of its sums, about.
_LINE_COST = 32
# Rows up to which the kernel for few rows is thought of: it reads B again for each FEW_ROWS.
_MOST_FEW = 8 * FEW_ROWS
# Of a core: multiply-adds in a cycle, and cycles until numbers come from memory.
_PER_CYCLE, _WAIT = 128, 600
# Of few rows a work-item reads so many numbers of B at a time, and a multiply-add takes the time of
# three, since A is read for it.
_READ, _FEW_COST = 4, 3
# Numbers of bfloat16 for one; and products of parts for each product, of A in three parts.
_PARTS = {DType.FLOAT32: 3, DType.FLOAT16: 2, DType.BFLOAT16: 1}
_PRODUCTS = {3: 6, 2: 5, 1: 3}
_LANES = {"mma": 32, "wmma": 32, "wmma_12": 32, "mfma": 64, "dpas_8": 8, "dpas_16": 16}
_MORE_REGISTERS = Code("-cl-intel-256-GRF-per-thread")
# As common/gpu_unit.clh numbers them.
_NUMBERS = {name: number for number, name in enumerate(_LANES, 1)}


@dataclass(frozen=True)
class MatrixUnitThresholds(Thresholds):
    """What matrix units of GPUs are worth.

    Attributes:
        percent: Products by the unit, of operands of 16 bits, in the time of 100
            multiply-adds of float32.
        worth_percent: From where on the unit is taken.
    """

    percent: int
    worth_percent: int

    group: ClassVar = "gpu_unit_gains"


@dataclass(frozen=True)
class MatrixUnitConfig:
    """How operands come into a unit.

    Attributes:
        parts: Numbers of the unit for one of A, and for one of B.
    """

    unit: MatrixShape
    parts: tuple[int, int] = (1, 1)

    @property
    def products(self) -> int:
        """Of the unit, for each of the operands."""
        return _products(self.parts)

    @property
    def lanes(self) -> int:
        """Work-items that multiply together."""
        return _LANES[gpu_matrix_shapes.instructions_of(self.unit)]

    @property
    def options(self) -> tuple[Code, ...]:
        """Of the compiler: Intel's else spills the sums of larger tiles."""
        return (
            (_MORE_REGISTERS,)
            if self.unit in (*gpu_matrix_shapes.DPAS_8, *gpu_matrix_shapes.DPAS_16)
            else ()
        )

    @property
    def defines(self) -> dict[str, Define]:
        """The macros of common/gpu_unit.clh, and of the parts."""
        made: dict[str, Define] = {
            "UNIT": _NUMBERS[gpu_matrix_shapes.instructions_of(self.unit)],
            "OPERAND": gpu_matrix_shapes.OPERANDS.index(self.unit.operands) + 1,
            "PARTS_A": self.parts[0],
            "PARTS_B": self.parts[1],
        }
        return made | ({"UNIT_IN_C": 1} if gpu_matrix_shapes.is_in_c(self.unit) else {})


def products_of(kernel: KernelSpec) -> int:
    """Products of a unit that a kernel makes for each of the operands; 0 where it uses none."""
    if kernel.entry != UNIT.entry:
        return 0
    defines = dict(kernel.defines)
    return _products((int(defines["PARTS_A"]), int(defines["PARTS_B"])))


def bytes_in_flight(kernel: KernelSpec) -> float:
    """Of a kernel of a unit: what a work-item has on the way at a time, its share of a slice."""
    defines = dict(kernel.defines)
    lines = ("T_M", "A_STORAGE"), ("T_N", "B_STORAGE")
    nbytes = sum(int(defines[n]) * (4 if defines[s] == "plain" else 2) for n, s in lines)
    return nbytes * _DEPTH / int(defines[_ITEMS[defines["PARTS_A"] != "1"]])


def _products(parts: tuple[int, int]) -> int:
    return 1 if parts == (1, 1) else _PRODUCTS[parts[1]]


def reject_unit(node: Node, caps: DeviceCaps) -> str | None:
    """Why `emit_unit` holds for no product of input 0."""
    if node.arg(0).dtype not in FLOAT_STORAGES:
        return "for floats of at most 32 bits"
    has_one = any(map(_is_known, caps.matrix_shapes))
    return None if has_one else "needs a matrix unit for floats of 16 bits"


def _is_known(unit: MatrixShape) -> bool:
    return gpu_matrix_shapes.instructions_of(unit) in _LANES


def emit_unit(product: GemmProblem, ctx: Lowering) -> list[Launch]:
    """As `emit_gpu`, where the device has a matrix unit for the operands that is faster.

    Raises:
        UnsupportedError: As `emit_any`, or it has none.
    """
    way = _way(product, ctx)
    if product.is_empty:
        return []
    tunables, device_units = ctx.tunables(UNIT), ctx.caps.cores
    sizes = way.products, tunables["T_M"], tunables["T_N"]
    tiles = tiles_of(*sizes)
    lines = sum(n * parts for n, parts in zip(tiles[0], way.parts, strict=True))
    slices = _SLICES if way.products == 1 and way.unit in gpu_matrix_shapes.MMA else 1
    ctx.require(Requires(local_mem_bytes=2 * _DEPTH * lines * slices))
    launches, product = merge(product, ctx)
    items = {name: tunables[name] for name in _ITEMS}
    made = _Made(way, items, product.a.is_wide, product.b.is_wide)
    kernels = [made.kernel(product, tile) for tile in tiles]
    taken = best_of(product.m, product.n, product.batches, device_units, *sizes)
    floats = product.dtype is product.y.dtype is DType.FLOAT32 and product.epilogue.vectorises
    own = made.arguments(product)
    parts = most = 1
    if floats:
        kernels.append(few_rows_kernel(product, ctx, made.a_wide, made.b_wide))
        few = _takes_few(product, kernels, way, ctx)
        taken = len(tiles) if few else taken
        # Parts leave no unit idle, in the smallest tiles at that.
        shared = (kernels[-1].size, FEW_PART_K), (kernels[-2].size, PART_K)
        parts = _parts(product, device_units, *shared[0 if few else 1])
        most = max(_parts(replace(product, m=1), device_units, *each) for each in shared)
    launches += tile_launches(product, kernels, taken if parts == 1 else None, **own)
    if most > 1:
        sums = ctx.scratch(parts * product.m * product.n)
        share = replace(share_of_k(product, parts), y=sums, y_offset=0, epilogue=Epilogue())
        kernels = [made.kernel(share, tile) for tile in tiles]
        kernels.append(few_rows_kernel(share, ctx, made.a_wide, made.b_wide))
        launches += tile_launches(share, kernels, None if parts == 1 else taken)
        launches.append(join_launch(product, sums, parts))
    return launches


def _parts(product: GemmProblem, cores: int, size: tuple[int, int], least: int) -> int:
    """Into how many parts K goes, for a kernel whose work-groups have so many rows and columns."""
    return _parts_of(product.m, product.n, product.k, product.batches, cores, *size, least)


def _parts_of(
    m: int, n: int, k: int, batches: int, cores: int, rows: int, columns: int, least: int
) -> int:
    """As many parts of whole slices, of at least so much of K, as give each core work."""
    if batches > 1:
        return 1
    groups = ceil_div(m, rows) * ceil_div(n, columns)
    return split_count(k, _GROUPS * cores // groups, _DEPTH, least)


def _takes_few(
    product: GemmProblem, kernels: Sequence[TileKernel], way: MatrixUnitConfig, ctx: Lowering
) -> int:
    """Whether the kernel for few rows is taken.

    Args:
        kernels: That of the smallest tile, and last that for few rows.
    """
    tile, few = kernels[-2:]
    sums = prod(tile.size) + _LINE_COST * sum(tile.size)
    percent = ctx.thresholds(MatrixUnitThresholds).percent
    cycles = _DEPTH * sums * way.products * 100 // (percent * _PER_CYCLE)
    sizes = product.m, product.n, product.k, product.batches, ctx.caps.cores
    return few_is_best(*sizes, *tile.size, cycles, few.size[1], prod(few.local))


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
) -> int:
    """Whether the kernel for few rows takes less time than the smallest tile.

    It may where tiles leave cores idle: its work-groups have fewer sums, so that there are more of
    them, and wait for memory less often.

    Args:
        below, beside: Rows and columns of the tile.
        cycles: In which a core computes with a slice of it.
        columns, items: Of a work-group of the other kernel.
    """
    if not FEW_ROWS < m <= _MOST_FEW:
        return int(m <= FEW_ROWS)

    def groups_and_cycles(
        rows: int, columns: int, least: int, depth: int, cycles: int
    ) -> tuple[int, int]:
        parts = _parts_of(m, n, k, batches, cores, rows, columns, least)
        groups = ceil_div(m, rows) * ceil_div(n, columns) * batches * parts
        each = max(ceil_div(groups, cores) * cycles, _WAIT)
        return groups, ceil_div(k, parts * depth) * each + (JOIN_CYCLES if parts > 1 else 0)

    read = _READ * items
    few_cycles = read * FEW_ROWS * _FEW_COST // _PER_CYCLE
    groups, by_tile = groups_and_cycles(below, beside, PART_K, _DEPTH, cycles)
    _, by_few = groups_and_cycles(FEW_ROWS, columns, FEW_PART_K, read // columns, few_cycles)
    return int(groups < cores and by_few < by_tile)


def _way(product: GemmProblem, ctx: Lowering) -> MatrixUnitConfig:
    """How the operands come into a matrix unit of the device.

    Raises:
        UnsupportedError: It has none for them, or is as fast without.
    """
    b = product.right
    a = b if product.a_dtype is b else product.dtype
    few_bits = product.level_rows is not None
    if few_bits or b not in _PARTS or (a is not b and a is not DType.FLOAT32):
        raise UnsupportedError(f"no product of {a} and {b} by a matrix unit")
    splits = a is DType.FLOAT32
    operands = str(DType.BFLOAT16 if splits else a)
    fitting = (s for s in sorted(ctx.caps.matrix_shapes) if _is_known(s))
    unit = next((s for s in fitting if s.operands == operands), None)
    if unit is None:
        raise UnsupportedError(f"needs a matrix unit for {operands}")
    way = MatrixUnitConfig(unit, (_PARTS[a], _PARTS[b]) if splits else (1, 1))
    gains = ctx.thresholds(MatrixUnitThresholds)
    if gains.percent < gains.worth_percent * way.products:
        raise UnsupportedError(f"multiply-adds are as fast as {way.products} products by a unit")
    return way


def tiles_of(products: int, rows: int, columns: int) -> tuple[tuple[int, int], ...]:
    """Rows and columns of a work-group, the largest first.

    Parts take more local memory, so that the largest tile is narrower.

    Args:
        products: Of the unit, for each of the operands.
        rows, columns: Of the largest tile there is.
    """
    narrow = columns // 2
    found = [(rows, columns if products == 1 else narrow), (rows // 2, narrow), (rows // 4, narrow)]
    return tuple(tile for tile in found if tile[0] >= _LEAST_ROWS)


@pure
def best_of(
    m: int, n: int, batches: int, device_units: int, products: int, rows: int, columns: int
) -> int:
    """Which of the tiles takes the least time.

    Large ones read less, small ones leave no unit idle.
    """
    tiles = tiles_of(products, rows, columns)

    def time(index: int) -> int:
        below, beside = tiles[index]
        groups = ceil_div(m, below) * ceil_div(n, beside) * batches
        return max(groups, device_units) * (below * beside + _LINE_COST * (below + beside))

    return min(range(len(tiles)), key=time)


@dataclass(frozen=True)
class _Made:
    """What the kernels of a product have in common.

    Attributes:
        items: Of a work-group, by the tunable.
        a_wide, b_wide: See `MatrixOperand.is_wide`.
    """

    way: MatrixUnitConfig
    items: Mapping[str, int]
    a_wide: bool = False
    b_wide: bool = False

    def kernel(self, product: GemmProblem, tile: tuple[int, int]) -> TileKernel:
        """The kernel of a tile."""
        defines = {
            **product.epilogue.defines,
            **product.b_defines,
            **self.way.defines,
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
        spec = spec.compiled(spec.opencl_c, *self.way.options)
        lanes = self.way.lanes
        items = self.items[_ITEMS[self.way.products > 1]]
        return TileKernel(spec, tile, (lanes, items // lanes, 1))

    def arguments(self, product: GemmProblem) -> dict[str, object]:
        """Those that are not the product's."""
        return {"a": product.a_in_octets} if self.a_wide else {}


def plain_kernel(product: GemmProblem, way: MatrixUnitConfig) -> TileKernel:
    """The kernel of the smallest tile, for operands anywhere."""
    tunables = UNIT.defaults
    tile = tiles_of(way.products, tunables["T_M"], tunables["T_N"])[-1]
    return _Made(way, {name: tunables[name] for name in _ITEMS}).kernel(product, tile)
