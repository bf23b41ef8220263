"""Products of A in 8-bit integers, or rounded to such, with a constant B of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.gemm_problem import GemmProblem, merge
from clrt.kernels.gemm_tile import is_whole
from clrt.kernels.gemm_variants import LEVELS
from clrt.kernels.spec import KernelSpec, Launch, PackedWeight, Scratch, launch, optional
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div, round_up

WIDTH = 32
"""Columns of a panel."""
_PLACES = 4
_SIGN = np.uint8(0x80)
_TILE_ROWS = 8
_MOST_ROWS = 64
# Work-groups for each core where there are fewer rows than that: each rounds its rows anew.
_GROUPS = 2


@dataclass(frozen=True)
class Int8Weights:
    """A constant B: an element is a level less the zero point of its column.

    Attributes:
        value: The levels, int8 or uint8, `[K, N]`, or `[N, K]` where `transposed`.
        zeros: Of the columns, `[N]` or one for all, of the levels' dtype; None: 0.
    """

    k: int
    n: int
    transposed: bool
    value: Value
    zeros: Value | None

    @property
    def depth(self) -> int:
        """Places of K in memory."""
        return round_up(self.k, _PLACES)

    @property
    def record(self) -> int:
        """Bytes of a panel."""
        return WIDTH * (self.depth + 3 * 4)

    @property
    def packed(self) -> PackedWeight:
        """The panels: bytes of levels, starts, zero points, scales."""
        order = ":transposed" if self.transposed else ""
        name = f"bytes:{self.k}x{self.n}{order}:{self.about}"
        return PackedWeight(self.value, name, self._pack, ceil_div(self.n, WIDTH) * self.record)

    @property
    def about(self) -> str:
        """Tells the panels from others of the same levels."""
        return "" if self.zeros is None else self.zeros.name

    def scale_columns(self, columns: Array) -> None:
        """What stands behind the levels of `[3, N]` columns: starts, zero points, scales."""

    def columns(self, array: Array) -> Array:
        """The levels from 0 on, `[N, K]`."""
        return unsigned(array if self.transposed else array.T)

    def by_column(self, numbers: Array) -> Array:
        """Zero points or scales as one for each column, or one for all."""
        return numbers.reshape(-1)

    def _pack(self, array: Array) -> Array:
        panels, groups = ceil_div(self.n, WIDTH), self.depth // _PLACES
        levels = np.zeros((panels * WIDTH, self.depth), np.uint8)
        levels[: self.n, : self.k] = self.columns(array)
        columns = np.zeros((3, panels * WIDTH), np.int32)
        zeros = np.zeros(1, array.dtype) if self.zeros is None else self.zeros.numbers
        assert zeros is not None
        columns[1, : self.n] = self.by_column(unsigned(zeros))
        sums = levels.sum(axis=1, dtype=np.int64)
        columns[0] = sums - self.k * columns[1].astype(np.int64)
        self.scale_columns(columns[:, : self.n])
        records = np.empty((panels, self.record), np.uint8)
        fours = levels.reshape(panels, WIDTH, groups, _PLACES).swapaxes(1, 2)
        records[:, : WIDTH * self.depth] = fours.reshape(panels, -1)
        by_panel = columns.reshape(3, panels, WIDTH).swapaxes(0, 1)
        tail = np.ascontiguousarray(by_panel).view(np.uint8)
        records[:, WIDTH * self.depth :] = tail.reshape(panels, -1)
        return records


@dataclass(frozen=True)
class ScaledInt8Weights(Int8Weights):
    """A constant B beside an A that is rounded: its elements are multiplied by a scale besides.

    Attributes:
        scales: Of the columns, float32 `[N]`.
        a_scale: What the levels of A are multiplied by.
        low, high: The least and the largest level of A: at most 255 apart.
    """

    scales: Value
    a_scale: float
    low: int
    high: int

    @property
    def middle(self) -> int:
        """What is subtracted from levels of A to make them 8 bits with a sign."""
        return self.low + 128

    @property
    def about(self) -> str:
        return f"{self.a_scale!r}:{self.middle}:{self.scales.name}:{super().about}"

    def scale_columns(self, columns: Array) -> None:
        scales = self.scales.numbers
        assert scales is not None
        columns[0] *= self.middle
        with np.errstate(over="ignore"):  # a file may have any
            columns[2] = (scales * np.float32(self.a_scale)).view(np.int32)


def unsigned(levels: Array) -> Array:
    """Levels of 8 bits from 0 on."""
    return levels if levels.dtype == np.uint8 else levels.view(np.uint8) ^ _SIGN


def emit_bytes(product: GemmProblem, weights: ScaledInt8Weights, ctx: Lowering) -> list[Launch]:
    """The launch; A is whole rows of float32.

    Raises:
        UnsupportedError: An operand of the epilogue is not float32, or walks too many axes.
    """
    product.epilogue.check_vectors()
    levels = {"scale": weights.a_scale, "low": float(weights.low), "high": float(weights.high)}
    return _emit(product, weights, ctx, {}, levels)


def emit_integers(
    product: GemmProblem, weights: Int8Weights, zero: Value | Scratch | None, ctx: Lowering
) -> list[Launch]:
    """The launch of sums in int32.

    Args:
        product: A is whole rows of 8-bit integers.
        zero: Its zero point.

    Raises:
        UnsupportedError: As `emit_bytes`.
    """
    signed = product.dtype is DType.INT8
    defines = {"A_T": product.dtype.cl, "A_MIDDLE": 0 if signed else 128}
    return _emit(product, weights, ctx, defines, optional(a_zero=zero))


def _emit(
    product: GemmProblem,
    weights: Int8Weights,
    ctx: Lowering,
    defines: Mapping[str, Define],
    levels: Mapping[str, Any],
) -> list[Launch]:
    if product.is_empty:
        return []
    launches, product = merge(product, ctx)
    tunables = ctx.tunables(LEVELS)
    height, columns = _shares(product, ctx.caps)
    groups = ceil_div(product.m, height) * ceil_div(product.n, columns) * product.batches
    macros = {
        **product.epilogue.defines,
        "T_VW": tunables["T_VW"],
        "S_N_WHOLE": int(is_whole(product, tunables["T_VW"])),
        "DOTS": int(VNNI_INT8 in ctx.caps.matrix_shapes),
        "MOST_ROWS": _MOST_ROWS,
        **defines,
    }
    if "a_zero" in levels:
        macros["A_ZERO"] = 1
    kernel = KernelSpec.of("matmul/gemm_bytes_cpu.cl", "gemm_bytes_cpu", **macros)
    records = ctx.scratch(groups * height * weights.depth, DType.UINT8)
    args = product.args | product.epilogue.args | {"b": weights.packed, "records": records}
    args |= {"height": height, "columns": columns, **levels}
    return [*launches, launch(kernel, (groups,), (1,), product.flops, **args)]


def _shares(product: GemmProblem, caps: DeviceCaps) -> tuple[int, int]:
    """Rows and columns of a work-group, such that all cores end together."""
    panels = ceil_div(product.n, WIDTH)

    def shares() -> Iterator[tuple[int, int, int]]:
        for height in range(_TILE_ROWS, _MOST_ROWS + 1, _TILE_ROWS):
            stripes = ceil_div(product.m, height) * product.batches
            spans = clamp(ceil_div(_GROUPS * caps.compute_units, stripes), 1, panels)
            width = ceil_div(panels, spans)
            groups = stripes * ceil_div(panels, width)
            rows = min(height, product.m)
            yield ceil_div(groups, caps.compute_units) * rows * width, -height, width * WIDTH

    _, height, columns = min(shares())
    return min(-height, product.m), columns
