"""Weights of few bits as the kernels of 8-bit dot products read them (common/dots.clh)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from clrt.formats.gguf.block_types import BlockType, DecodedRows
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.spec import (
    BufferArg,
    DevicePacking,
    KernelSpec,
    Launch,
    PackedWeight,
    Scratch,
    launch,
)
from clrt.util.math import ceil_div

WIDTH = 32
"""Columns of a panel."""
_COLUMNS = 16  # of 64 bytes of levels
_PLACES = 4  # of a column there
ROW_TAIL = 16
"""Bytes behind the places of a row's record."""
_PANELS_AT_ONCE = 16
PACKED_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
"""The types of GGUF that matmul/pack_levels.cl knows."""


def records_layout(bits: int, block: int, n: int, k: int, name: str) -> str:
    """Names the records of `[N, K]`; the rest is as the attributes of `QuantizedPanels`."""
    return f"records{bits}x{block}:{n}x{k}:{name}"


@dataclass(frozen=True)
class QuantizedPanels:
    """A constant B of few bits, `[N, K]`: an element is (level - zero) * scale - minimum.

    Attributes:
        bits: Of a level in the records: 4 or 8.
        block: Places of K with one scale: 16 or 32.
        zero: What is subtracted from each level.
        has_minima: Whether a minimum is subtracted from elements.
        wide_scales: Whether scales take 32 bits, and not 16.
        value: The constant that rows are read from.
        name: Tells the records from those of other constants that go with the value.
        rows: Rows `first` to `last`, of the elements of the value.
        type: The type of GGUF whose blocks the value holds, if it does.
    """

    n: int
    k: int
    bits: int
    block: int
    zero: int
    has_minima: bool
    wide_scales: bool
    value: Value
    name: str
    rows: Callable[[Array, int, int], DecodedRows] = field(repr=False)
    type: BlockType | None = None

    @property
    def defines(self) -> dict[str, Define]:
        """The macros of common/dots.clh."""
        return {
            "DOT_BLOCK": self.block,
            "BITS": self.bits,
            "ZERO": self.zero,
            "MINIMA": int(self.has_minima),
            "SCALE_BYTES": 4 if self.wide_scales else 2,
        }

    @property
    def blocks(self) -> int:
        """Of K."""
        return ceil_div(self.k, self.block)

    @property
    def record(self) -> int:
        """Bytes of a record."""
        scales = (1 + self.has_minima) * (4 if self.wide_scales else 2)
        return WIDTH * (self.block * self.bits // 8 + scales)

    @property
    def packed(self) -> PackedWeight:
        """The records, by panel and block."""
        count = ceil_div(self.n, WIDTH) * self.blocks
        name = records_layout(self.bits, self.block, self.n, self.k, self.name)
        type_ = self.type
        on_device = None
        if type_ is not None and type_.name in PACKED_TYPES and not self.wide_scales:
            row_bytes = type_.row_bytes(self.k)
            on_device = DevicePacking(self.n, row_bytes, DType.UINT8, WIDTH, self._emit)
        return PackedWeight(self.value, name, self._pack, count * self.record, on_device)

    def _emit(self, rows: Scratch, records: Scratch, first: int, end: int) -> Launch:
        """The launch that packs rows of blocks."""
        type_ = self.type
        assert type_ is not None
        defines = {"FORMAT": type_.code, "ELEMS": type_.elements, "BYTES": type_.nbytes}
        defines |= {"BITS": self.bits, "DOT_BLOCK": self.block, "MINIMA": int(self.has_minima)}
        kernel = KernelSpec.of("matmul/pack_levels.cl", "pack_levels", **defines)
        blocks = self.k // type_.elements
        to = BufferArg(records, first // WIDTH * self.blocks * self.record)
        grid = (blocks, ceil_div(end - first, WIDTH))
        return launch(kernel, grid, (1, 1), y=to, x=rows, rows=end - first, blocks=blocks)

    def row_records(self, rows: int) -> int:
        """Bytes of the records of rows of A."""
        return rows * self.blocks * (self.block + ROW_TAIL)

    def _pack(self, array: Array) -> Array:
        panels = ceil_div(self.n, WIDTH)
        records = np.empty((panels, self.blocks, self.record), np.uint8)
        # By so many panels at a time, that the levels of a large weight are never all there.
        for first in range(0, panels, _PANELS_AT_ONCE):
            end = min(first + _PANELS_AT_ONCE, panels)
            rows = self.rows(array, first * WIDTH, min(end * WIDTH, self.n))
            self._pack_panels(records[first:end], rows)
        return records

    def _pack_panels(self, records: Array, rows: DecodedRows) -> None:
        panels = len(records)
        count, k = rows.levels.shape
        levels = rows.levels
        if (count, k) != (panels * WIDTH, self.blocks * self.block):
            levels = np.zeros((panels * WIDTH, self.blocks * self.block), np.uint8)
            levels[:count, :k] = rows.levels
        # Four places of a column are moved as one number.
        fours: Array = np.ascontiguousarray(levels).view(np.uint32)
        fours = fours.reshape(len(levels), self.blocks, -1)
        if self.bits == 4:
            middle = fours.shape[2] // 2
            fours = fours[:, :, :middle] | fours[:, :, middle:] << 4
        places = fours.shape[2]
        halves = fours.reshape(panels, WIDTH // _COLUMNS, _COLUMNS, self.blocks, places)
        start = places * WIDTH * _PLACES
        to = np.empty((panels, self.blocks, places, WIDTH // _COLUMNS, _COLUMNS), np.uint32)
        to[...] = halves.transpose(0, 3, 4, 1, 2)
        records[:, :, :start] = to.view(np.uint8).reshape(panels, self.blocks, start)
        for numbers in (rows.scales, rows.minima)[: 1 + self.has_minima]:
            columns = np.zeros((panels * WIDTH, self.blocks), np.float32)
            if numbers is not None:
                columns[:count] = numbers
            with np.errstate(over="ignore"):  # a file may have any
                stored = columns.astype(np.float32 if self.wide_scales else np.float16)
            by_block = stored.reshape(panels, WIDTH, self.blocks).swapaxes(1, 2)
            taken = np.ascontiguousarray(by_block).view(np.uint8)
            records[:, :, start : start + taken.shape[2]] = taken
            start += taken.shape[2]


def rounded_rows(a: Array, block: int) -> Array:
    """Rows rounded to 8 bits by blocks, as kernels do it on the way: float32 like them."""
    *rows, k = a.shape
    count = ceil_div(k, block)
    padded = np.zeros((*rows, count * block), np.float32)
    padded[..., :k] = a
    blocks = padded.reshape(*rows, count, block)
    most = np.abs(blocks).max(axis=-1, keepdims=True, initial=0.0)
    with np.errstate(all="ignore"):
        inverse = np.where(most > 0, np.float32(127) / most, np.float32(0))
        levels = np.rint(blocks * inverse)
    return np.asarray(levels * (most / np.float32(127))).reshape(padded.shape)[..., :k]


def in_half(rows: DecodedRows) -> Array:
    """float32 elements of rows whose scales and minima are rounded to float16."""
    with np.errstate(over="ignore"):
        halves = [None if x is None else x.astype(np.float16) for x in (rows.scales, rows.minima)]
    scales, minima = (
        None if x is None else x.astype(np.float32).repeat(rows.block, axis=1) for x in halves
    )
    assert scales is not None
    values = (rows.levels.astype(np.float32) - rows.zero) * scales
    return values if minima is None else values - minima


def fits_half(numbers: Array) -> bool:
    """Whether float16 holds numbers as they are."""
    with np.errstate(over="ignore"):
        return bool(np.all(numbers.astype(np.float16).astype(np.float32) == numbers))
