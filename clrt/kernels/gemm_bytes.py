"""Products of A, rounded to multiples of a scale, with a constant B of 8-bit integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.gemm import LEVELS
from clrt.kernels.product import Product, merge
from clrt.kernels.spec import KernelSpec, Launch, Packed, ceil_div, clamp, launch, round_up
from clrt.kernels.tiles import is_whole
from clrt.kernels.variant import Lowering

WIDTH = 32
"""Columns of a panel."""
_PLACES = 4
_SIGN = np.uint8(0x80)
_TILE_ROWS = 8
_MOST_ROWS = 64
# Work-groups for each core where there are fewer rows than that: each rounds its rows anew.
_GROUPS = 2


@dataclass(frozen=True)
class ByteWeights:
    """A constant B: an element is (level - zero point of its column) * scale of its column.

    Attributes:
        value: The levels, int8 or uint8, `[K, N]`, or `[N, K]` where `transposed`.
        zeros: Of the columns, `[N]`, of the levels' dtype.
        scales: Of the columns, float32 `[N]`.
        a_scale: What the levels of A are multiplied by.
        low, high: The least and the largest level of A: at most 255 apart.
    """

    k: int
    n: int
    transposed: bool
    value: Value
    zeros: Value
    scales: Value
    a_scale: float
    low: int
    high: int

    @property
    def middle(self) -> int:
        """What is subtracted from levels of A to make them 8 bits with a sign."""
        return self.low + 128

    @property
    def depth(self) -> int:
        """Places of K in memory."""
        return round_up(self.k, _PLACES)

    @property
    def record(self) -> int:
        """Bytes of a panel."""
        return WIDTH * (self.depth + 3 * 4)

    @property
    def packed(self) -> Packed:
        """The panels: bytes of levels, starts, zero points, scales."""
        order = ":transposed" if self.transposed else ""
        about = f"{self.a_scale!r}:{self.middle}:{self.scales.name}:{self.zeros.name}"
        name = f"bytes:{self.k}x{self.n}{order}:{about}"
        return Packed(self.value, name, self._pack, ceil_div(self.n, WIDTH) * self.record)

    def _pack(self, array: Array) -> Array:
        panels, groups = ceil_div(self.n, WIDTH), self.depth // _PLACES
        levels = np.zeros((panels * WIDTH, self.depth), np.uint8)
        levels[: self.n, : self.k] = _unsigned(array if self.transposed else array.T)
        columns = np.zeros((3, panels * WIDTH), np.int32)
        zeros = self.zeros.numbers
        scales = self.scales.numbers
        assert zeros is not None and scales is not None
        columns[1, : self.n] = _unsigned(zeros)
        sums = levels.sum(axis=1, dtype=np.int64)
        columns[0] = self.middle * (sums - self.k * columns[1].astype(np.int64))
        with np.errstate(over="ignore"):  # a file may have any
            columns[2].view(np.float32)[: self.n] = scales * np.float32(self.a_scale)
        records = np.empty((panels, self.record), np.uint8)
        fours = levels.reshape(panels, WIDTH, groups, _PLACES).swapaxes(1, 2)
        records[:, : WIDTH * self.depth] = fours.reshape(panels, -1)
        by_panel = columns.reshape(3, panels, WIDTH).swapaxes(0, 1)
        tail = np.ascontiguousarray(by_panel).view(np.uint8)
        records[:, WIDTH * self.depth :] = tail.reshape(panels, -1)
        return records


def _unsigned(levels: Array) -> Array:
    """Levels of 8 bits from 0 on."""
    return levels if levels.dtype == np.uint8 else levels.view(np.uint8) ^ _SIGN


def emit_bytes(product: Product, weights: ByteWeights, ctx: Lowering) -> list[Launch]:
    """The launch; A is whole rows.

    Raises:
        UnsupportedError: An operand of the epilogue is not float32, or walks too many axes.
    """
    product.epilogue.check_vectors()
    if product.is_empty:
        return []
    launches, product = merge(product, ctx)
    tunables = ctx.tunables(LEVELS)
    height, columns = _shares(product, ctx.caps)
    groups = ceil_div(product.m, height) * ceil_div(product.n, columns) * product.batches
    defines = {
        **product.epilogue.defines,
        "T_VW": tunables["T_VW"],
        "S_N_WHOLE": int(is_whole(product, tunables["T_VW"])),
        "DOTS": int(VNNI_INT8 in ctx.caps.matrix_shapes),
        "MOST_ROWS": _MOST_ROWS,
    }
    kernel = KernelSpec.of("matmul/gemm_bytes_cpu.cl", "gemm_bytes_cpu", **defines)
    records = ctx.scratch(groups * height * weights.depth, DType.UINT8)
    args = product.args | product.epilogue.args | {"b": weights.packed, "records": records}
    levels = {"scale": weights.a_scale, "low": float(weights.low), "high": float(weights.high)}
    args |= {"height": height, "columns": columns, **levels}
    return [*launches, launch(kernel, (groups,), (1,), product.flops, **args)]


def _shares(product: Product, caps: DeviceCaps) -> tuple[int, int]:
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
