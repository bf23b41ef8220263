"""GEMM of 8-bit integers with zero points, exact in int32, without int8 dot instructions."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Code
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels import gemm_variants
from clrt.kernels.gemm_cpu import pack_b
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand, merge
from clrt.kernels.gemm_tile import panel_width, select_tile
from clrt.kernels.panel_layout import Panels
from clrt.kernels.quantize_launches import ScaleIndexing, dequantize_launch
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, PackedWeight, launch
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div, round_up

CPU = tuned(
    "gemm_integer_cpu",
    {"T_MR": (3, 4, 6, 8, 12), "T_NV": (1, 2, 3, 4), "T_VW": (4, 8, 16)},
    T_MR=4,
    T_NV=2,
    T_VW=8,
)


def packed_width(product: GemmProblem, ctx: Lowering) -> int:
    """Returns the number of columns per panel in which `emit_cpu` reads B."""
    return panel_width(select_tile(CPU, product, ctx))


def difference(
    value: Value, zero: Value | None, walk: ScaleIndexing, to: DType, ctx: Lowering
) -> tuple[list[Launch], BufferArg]:
    """Subtracts zero points from a tensor of 8-bit integers, at load if both are constants.

    Args:
        value: Tensor of 8-bit integers.
        zero: Zero points; None for 0.
        walk: Maps each element of `value` to its zero point.
        to: Dtype of the result.

    Returns:
        The launches, empty if computed at load, and the buffer of the result.
    """
    zeros = None if zero is None else zero.numbers
    if value.is_constant and value.has_numbers and (zero is None or zeros is not None):

        def pack(array: Array) -> Array:
            return subtract(array, zeros, walk).astype(to.numpy)

        name = "" if zero is None else zero.name
        nbytes = prod(value.dims) * to.itemsize
        return [], BufferArg(PackedWeight(value, f"minus_{name}_{to}_{walk}", pack, nbytes))
    target = ctx.scratch(prod(value.dims), to)
    return [dequantize_launch(target, to, value, None, zero, walk, ctx)], BufferArg(target)


def subtract(array: Array, zeros: Array | None, walk: ScaleIndexing) -> Array:
    """Subtracts zero points from 8-bit integers on the host; returns int16 of the array's shape.

    Args:
        array: The integers.
        zeros: Zero points; None for 0.
        walk: Maps each element of `array` to its zero point.
    """
    shorts = array.astype(np.int16)
    if zeros is None:
        return shorts
    outer, along, inner = walk.strides
    index = (
        np.arange(walk.outer)[:, None, None] * outer
        + np.arange(walk.n)[None, :, None] // walk.block * along
        + np.arange(walk.inner)[None, None, :] * inner
    )
    elements = shorts.reshape(walk.outer, walk.n, walk.inner)
    centred: Array = elements - zeros.reshape(-1).astype(np.int16)[index]
    return centred.reshape(array.shape)


def constant_panels(
    value: Value, zero: Value | None, walk: ScaleIndexing, product: GemmProblem, ctx: Lowering
) -> tuple[MatrixOperand, Code] | None:
    """Packs a constant B, less its zero points, in panels of int8, or int16 if int8 may overflow.

    Args:
        value: B, int8 or uint8.
        zero: Zero points of B; None for 0.
        walk: Maps each element of B to its zero point.
        product: The GEMM.

    Returns:
        The panels and the C type of their elements. None if B or its zero point is not a constant,
        or if the GEMM has more than two batch axes and B varies along one.
    """
    zeros = None if zero is None else zero.numbers
    if not value.has_numbers or not value.is_constant or (zero is not None and zeros is None):
        return None
    if len(product.batch) > 2 and any(product.b.strides[:-2]):
        return None
    middle = 0 if value.dtype is DType.INT8 else 128
    centred = (zeros is None and middle == 0) or (
        zeros is not None and bool((zeros == middle).all())
    )
    dtype = DType.INT8 if centred else DType.INT16
    columns = packed_width(product, ctx)
    panels = Panels(product.k, product.n, columns, False).of(value)

    def pack(array: Array) -> Array:
        return panels.pack(subtract(array, zeros, walk).astype(dtype.numpy))

    layout = f"{panels.layout}_minus_{'' if zero is None else zero.name}"
    nbytes = panels.nbytes // value.dtype.itemsize * dtype.itemsize
    packed = BufferArg(PackedWeight(value, layout, pack, nbytes))
    packed_size = round_up(product.n, columns) * product.k
    size = max(product.n * product.k, 1)
    strides = tuple(s // size * packed_size for s in product.b.strides[:-2])
    return MatrixOperand(packed, (*strides, columns, 1), in_panels=True), dtype.cl


def emit_cpu(
    product: GemmProblem, ctx: Lowering, panel_type: Code = DType.FLOAT32.cl
) -> list[Launch]:
    """Returns launches of a register-blocked CPU GEMM that multiplies integers as float32.

    Args:
        product: The GEMM; A is float32, and so is B unless it is in panels.
        panel_type: C type of B's elements in panels.

    Raises:
        UnsupportedError: The rows of A are not contiguous, or there are too many batch axes.
    """
    if product.is_empty:
        return []
    tunables = select_tile(CPU, product, ctx)
    launches, product = merge(product, ctx)
    packing, b, b_strides = pack_b(product, panel_width(tunables), ctx)
    if product.a.strides[-1] != 1 and product.k > 1:
        raise UnsupportedError("the rows of A are not contiguous")
    args = {**product.args, "b": b, "b_s0": b_strides[0], "b_s1": b_strides[1]}
    tiles = ceil_div(product.m, tunables["T_MR"]) * ceil_div(product.n, panel_width(tunables))
    kernel = KernelSpec.of(
        "matmul/gemm_integer_cpu.cl",
        "gemm_integer_cpu",
        **tunables,
        B_T=panel_type,
    )
    groups = tiles * product.batches
    return [*launches, *packing, launch(kernel, (groups,), (1,), product.flops, **args)]


def emit_any(product: GemmProblem, ctx: Lowering) -> list[Launch]:
    """Returns launches of an integer GEMM with one work-item per element of y.

    Args:
        product: The GEMM; A and B are int16.
    """
    return gemm_variants.emit_any(
        replace(product, dtype=DType.INT16, accumulator=DType.INT32.cl), ctx
    )
