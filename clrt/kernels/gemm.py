"""Matrix products with an epilogue: the launches behind MatMul, Gemm, FusedMatMul and Conv."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TypeAlias

from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.kernels.panels import Panels
from clrt.kernels.product import Epilogue, Product, copy_a, merge
from clrt.kernels.row_norm import RowNorm, norm_flops
from clrt.kernels.spec import (
    Arg,
    BufferArg,
    Emit,
    Fits,
    KernelSpec,
    Launch,
    Lowering,
    Variant,
    always,
    ceil_div,
    i32,
    misfit_float32_cpu,
    misfit_float64,
    pieces_per_group,
    round_up,
)
from clrt.kernels.tiles import has_fixed_width, tile, width
from clrt.kernels.tuned import tuned

EmitProduct: TypeAlias = Callable[[Product, Lowering], list[Launch]]

CPU = tuned(
    "gemm_cpu",
    {
        "T_MR": (3, 4, 6, 8, 12, 14),
        "T_NV": (1, 2, 3, 4),
        "T_VW": (4, 8, 16),
        "T_MC": (8, 32, 128),
        "T_KU": (1, 2, 4),
    },
    T_MR=4,
    T_NV=3,
    T_VW=8,
    T_MC=32,
    T_KU=2,
)
BLOCKS = tuned(
    "gemm_blocks_cpu",
    {"T_MR": (4, 6, 8), "T_NV": (2, 3), "T_VW": (4, 8, 16), "T_MB": (4, 8, 16)},
    T_MR=4,
    T_NV=3,
    T_VW=8,
    T_MB=16,
    T_KC=128,
)
GPU = tuned(
    "gemm_gpu",
    {"T_RM": (2, 4, 8), "T_RN": (2, 4, 8), "T_TK": (8, 16, 32)},
    T_RM=4,
    T_RN=4,
    T_TK=16,
)
_GPU_SIDE = 16
_PACKED_ROWS = 64  # to a work-item
_STRIPE = 16  # blocks of rows to a work-group, at most
_START = 0.1  # tiles of K = 384 in the time that it takes to start a work-group
_SPARED = 0.75  # of the time that a shorter last stripe takes less: cores wait for each other


def misfit_cpu(node: Node, caps: DeviceCaps) -> str | None:
    """Why `emit_cpu` does not hold for a product of input 0."""
    return misfit_float32_cpu(node, caps)


def misfit_gpu(node: Node, caps: DeviceCaps) -> str | None:
    """Why `emit_gpu` does not hold for a product of input 0."""
    if caps.is_cpu:
        return "for GPUs"
    if caps.max_work_group_size < _GPU_SIDE**2:
        return f"work-groups of {caps.max_work_group_size} are too small"
    return None if node.arg(0).dtype is DType.FLOAT32 else "for float32"


def misfit_any(node: Node, caps: DeviceCaps) -> str | None:
    """Why `emit_any` does not hold for a product of input 0."""
    if node.arg(0).dtype is DType.BOOL:
        return "no product of bool"
    return misfit_float64(node, caps)


def _check_vectors(epilogue: Epilogue) -> None:
    if not epilogue.vectorises:
        raise UnsupportedError("an operand or the result is not float32")


def emit_cpu(product: Product, ctx: Lowering, norm: RowNorm | None = None) -> list[Launch]:
    """Register-blocked tiles of a work-group of one; B packed in panels, at load if constant.

    Args:
        norm: Of the rows of y, which is one matrix.

    Raises:
        UnsupportedError: The epilogue needs other types than float32, or walks too many axes.
    """
    _check_vectors(product.epilogue)
    if product.is_empty:
        return []
    tunables = tile(CPU, product, ctx)
    launches, product = merge(product, ctx)
    if product.k and product.a.strides[-1] != 1:
        copied, product = copy_a(product, ctx)
        launches += copied
    packing, b, b_strides = pack_b(product, width(tunables), ctx)
    launches += packing
    defines = {
        **tunables,
        **_epilogue_defines(product.epilogue),
        "S_N_WHOLE": int(_is_whole(product, tunables["T_VW"])),
        **_b_defines(product),
        **(norm.defines if norm else {}),
    }
    kernel = KernelSpec.of("gemm_cpu.cl", "gemm_cpu", **defines)
    a0, a1, a_row, _ = product.a.strides
    strides = (product.batch[1], a0, a1, a_row, *b_strides)
    buffers = (BufferArg(product.y, product.y_offset), product.a.buffer, b)

    def launch(rows: int, height: int, groups: int, flops: int, *more: Arg) -> Launch:
        sizes = (i32(v) for v in (rows, product.n, product.k, height, *strides))
        args = (*buffers, *sizes, *_epilogue_args(product.epilogue), *more)
        return Launch(kernel, (groups,), (1,), args, flops)

    units, rows = ctx.caps.compute_units, product.batches * product.m
    blocks = ceil_div(product.m, tunables["T_MR"])
    panels = ceil_div(product.n, width(tunables)) * product.batches
    longest = min(_STRIPE, tunables["T_MC"])
    most = pieces_per_group(blocks * panels, longest, ctx.caps)
    height = _stripe(blocks, panels, most, units)
    tiles = (product.m, height, ceil_div(blocks, height) * panels, product.flops)
    if norm is None:
        return [*launches, launch(*tiles)]
    flops = norm_flops(rows, product.n)
    height = _stripe(ceil_div(rows, tunables["T_MR"]), 1, longest, units)
    stripes = (rows, height, ceil_div(rows, height * tunables["T_MR"]))
    # Each stripe reads all of B: where rows are few, tiles share it out better.
    if product.batches == 1 and blocks >= 2 * units:
        return [*launches, launch(*stripes, product.flops + flops, *norm.args, i32(1), i32(1))]
    multiply = launch(*tiles, *norm.args, i32(1), i32(0))
    normalise = launch(*stripes, flops, *norm.args, i32(0), i32(1))
    of_norm = {a.buffer for a in norm.args if isinstance(a, BufferArg)}
    of_product = {b for b in multiply.buffers if b not in of_norm and b is not product.y}
    return [
        *launches,
        replace(multiply, untouched=frozenset(of_norm)),
        replace(normalise, untouched=frozenset(of_product)),
    ]


def _stripe(blocks: int, panels: int, most: int, units: int) -> int:
    """Blocks of rows to a work-group, from half of `most` on, so that all cores end together."""

    def tiles_of_a_core(height: int) -> float:
        stripes = ceil_div(blocks, height)
        lacking = height - blocks / stripes
        return ceil_div(stripes * panels, units) * (height - _SPARED * lacking + _START)

    most = min(most, blocks)
    return min(range(most, ceil_div(most, 2) - 1, -1), key=tiles_of_a_core)


def _is_whole(product: Product, lanes: int) -> bool:
    """Whether each row of y is whole vectors, at every shape."""
    return has_fixed_width(product) and not product.n % lanes and not product.y_offset % lanes


def emit_blocks_cpu(product: Product, ctx: Lowering) -> list[Launch]:
    """As `emit_cpu`, for a B of few bits; A is whole rows, one after the other.

    Raises:
        UnsupportedError: As `emit_cpu`.
    """
    _check_vectors(product.epilogue)
    if product.is_empty:
        return []
    tunables = tile(BLOCKS, product, ctx)
    launches, product = merge(product, ctx)
    assert product.blocks is not None
    defines = {
        **tunables,
        **_epilogue_defines(product.epilogue),
        "S_N_WHOLE": int(_is_whole(product, tunables["T_VW"])),
        "BITS": product.blocks.bits,
    }
    sizes = (product.m, product.n, product.k, product.batch[1], *product.a.strides[:-1])
    args: tuple[Arg, ...] = (
        BufferArg(product.y, product.y_offset),
        product.a.buffer,
        *_block_args(product, width(tunables)),
        *(i32(s) for s in sizes),
        *_epilogue_args(product.epilogue),
    )
    chunks = ceil_div(product.m, tunables["T_MR"] * tunables["T_MB"])
    size = (chunks * ceil_div(product.n, width(tunables)) * product.batches,)
    kernel = KernelSpec.of("gemm_blocks_cpu.cl", "gemm_blocks_cpu", **defines)
    return [*launches, Launch(kernel, size, (1,), args, product.flops)]


def emit_gpu(product: Product, ctx: Lowering) -> list[Launch]:
    """Tiles in local memory, a block of elements per work-item; A and B are read in place.

    Raises:
        UnsupportedError: As `emit_cpu`, or the device has too little local memory.
    """
    _check_vectors(product.epilogue)
    if product.is_empty:
        return []
    tunables = ctx.tunables(GPU)
    tile_n, tile_m = (_GPU_SIDE * tunables[t] for t in ("T_RN", "T_RM"))
    if ctx.caps.local_mem_bytes < 4 * tunables["T_TK"] * (tile_n + 1 + tile_m + 1):
        raise UnsupportedError(f"{ctx.caps.local_mem_bytes} bytes of local memory are too few")
    launches, product = merge(product, ctx)
    defines = {
        **tunables,
        **_epilogue_defines(product.epilogue),
        "S_A_K_LAST": int(product.a.strides[-1] == 1),
        "S_B_N_LAST": int(product.b.strides[-1] == 1),
        **_b_defines(product),
    }
    size = (
        ceil_div(product.n, tile_n) * _GPU_SIDE,
        ceil_div(product.m, tile_m) * _GPU_SIDE,
        product.batches,
    )
    kernel = KernelSpec.of("gemm_gpu.cl", "gemm_gpu", **defines)
    local = (_GPU_SIDE, _GPU_SIDE, 1)
    return [*launches, Launch(kernel, size, local, _strided_args(product), product.flops)]


def emit_any(product: Product, ctx: Lowering) -> list[Launch]:
    """One work-item per element, for any dtype."""
    if product.is_empty:
        return []
    launches, product = merge(product, ctx)
    defines = {
        **_epilogue_defines(product.epilogue),
        "DATA_T": product.dtype.cl,
        **_b_defines(product),
        "ACC_T": product.accumulator,
        "OUT_T": product.y.dtype.compute,
        "Y_T": product.y.dtype.cl,
        "A_STORAGE": product.dtype.storage,
        "Y_STORAGE": product.y.dtype.storage,
    }
    kernel = KernelSpec.of("gemm_any.cl", "gemm_any", **defines)
    size = (product.n, product.m, product.batches)
    return [*launches, Launch(kernel, size, None, _strided_args(product), product.flops)]


def variants(
    lowered: Callable[[EmitProduct], Emit], misfit: Fits = always, prefix: str = ""
) -> tuple[Variant, ...]:
    """One for each kernel of products.

    Args:
        lowered: Gives the launches of a node with the products of an `emit_…`.
        misfit: Why none of them holds.
    """

    def both(kernel: Fits) -> Fits:
        return lambda node, caps: misfit(node, caps) or kernel(node, caps)

    return (
        Variant(f"{prefix}gemm_cpu", lowered(emit_cpu), both(misfit_cpu)),
        Variant(f"{prefix}gemm_gpu", lowered(emit_gpu), both(misfit_gpu)),
        Variant(f"{prefix}gemm_any", lowered(emit_any), both(misfit_any)),
    )


def packed_width(product: Product, ctx: Lowering) -> int:
    """Columns of a panel of B as `emit_cpu` reads it."""
    return width(tile(CPU, product, ctx))


def _b_defines(product: Product) -> dict[str, object]:
    if product.blocks is not None:
        return {"B_T": DType.UINT8.cl, "BITS": product.blocks.bits}
    return {"B_T": product.right.cl, "B_STORAGE": product.right.storage}


def _block_args(product: Product, columns: int) -> tuple[Arg, ...]:
    assert product.blocks is not None
    levels, pairs = product.blocks.packed(product.n, product.k, columns)
    return BufferArg(levels), BufferArg(pairs), i32(product.blocks.size)


def _strided_args(product: Product) -> tuple[Arg, ...]:
    sizes = (product.m, product.n, product.k, product.batch[1])
    numbers = (*sizes, *product.a.strides, *product.b.strides)
    b = (product.b.buffer,) if product.blocks is None else _block_args(product, product.n)
    buffers = (BufferArg(product.y, product.y_offset), product.a.buffer, *b)
    return (*buffers, *(i32(v) for v in numbers), *_epilogue_args(product.epilogue))


def _epilogue_defines(epilogue: Epilogue) -> dict[str, object]:
    inputs, reads = "", []
    for k, (operand, kind) in enumerate(zip(epilogue.operands, epilogue.types, strict=True), 1):
        dtype = operand.value.dtype
        strides = "".join(f", const IDX_T x{k}_{s}" for s in ("s0", "s1", "sm"))
        inputs += f", IN({dtype.cl}, x{k}){strides}"
        macro = "COLUMNS" if operand.per_column else "ROW"
        reads.append(f"const {kind} v{k} = {macro}({k}, {dtype.storage});")
    return {
        "INPUTS": inputs,
        "READS": " ".join(reads),
        "BODY": epilogue.body,
        "RESULT": epilogue.result,
    }


def _epilogue_args(epilogue: Epilogue) -> tuple[Arg, ...]:
    args: list[Arg] = []
    for operand in epilogue.operands:
        args += [BufferArg(operand.value), *(i32(s) for s in operand.strides)]
    return tuple(args)


def pack_b(
    product: Product, panel: int, ctx: Lowering
) -> tuple[list[Launch], BufferArg, tuple[int, int]]:
    """B in panels: the launches that pack it, the buffer, and its strides by batch axis."""
    s0, s1, s_k, s_n = product.b.strides
    n, k = product.n, product.k
    columns = round_up(n, panel)
    source = product.b.buffer
    if product.b.in_panels:
        return [], source, (s0, s1)
    constant = source.buffer
    # Packed once where B is the constant as it lies; another view of it is packed at each run.
    by_rows = (s_n == 1 or n == 1) and (s_k == n or k == 1)
    as_it_lies = by_rows or ((s_k == 1 or k == 1) and (s_n == k or n == 1))
    if (
        as_it_lies
        and source.offset == 0
        and isinstance(constant, Value)
        and constant.is_constant
        and constant.has_numbers
    ):
        packed = Panels(k, n, panel, s_n != 1).of(constant)
        scale, size = columns * k, max(n * k, 1)
        return [], BufferArg(packed), (s0 // size * scale, s1 // size * scale)
    if product.right is not product.dtype:
        raise UnsupportedError(f"B in {product.right} is no constant as it lies")
    own = tuple(1 if s == 0 else d for d, s in zip(product.batch, (s0, s1), strict=True))
    target = BufferArg(ctx.scratch(prod(own) * columns * k))
    strides = (0 if s0 == 0 else own[1] * columns * k, 0 if s1 == 0 else columns * k)
    if k == 0:
        return [], target, strides
    numbers = (n, k, panel, columns, own[1], s0, s1, s_k, s_n)
    kernel = KernelSpec.of("pack_panels.cl", "pack_panels", ROWS=_PACKED_ROWS)
    args: tuple[Arg, ...] = (target, source, *(i32(v) for v in numbers))
    grid = (columns // panel, ceil_div(k, _PACKED_ROWS), prod(own))
    return [Launch(kernel, grid, (1, 1, 1), args)], target, strides
