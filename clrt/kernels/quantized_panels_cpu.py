"""Low-bit weights packed in panels for the CPU's int8 dot-product kernels (common/dots.clh)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np

from clrt.formats.gguf.block_type import BlockType, DecodedRows
from clrt.ir.cl_code import Define
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.block_packing import BlockPacking
from clrt.kernels.quantized_weights import QuantizedWeights
from clrt.kernels.spec import (
    PackedWeight,
)
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

WIDTH = 32
"""Columns per panel."""
# Layout of levels in units of 64 bytes: 16 columns of 4 neighbours along K each.
_COLUMNS = 16
_DOT_DEPTH = 4
ROW_TAIL = 16
"""Bytes after the quantized values in a record of a row of A: scale, start value, sum, padding."""
# Panels packed at a time, which bounds the memory of unpacked levels.
_PANELS_PER_CHUNK = 16


def records_layout(bits: int, block: int, n: int, k: int, name: str) -> str:
    """Returns the name of the packed layout of a low-bit B `[N, K]` in records.

    Args:
        bits: Bits per level.
        block: Elements of K, the summed axis, per scale.
        n: Columns of B.
        k: Size of K.
        name: Part of the layout name that distinguishes records of the same levels, such as by the
            names of their scales.
    """
    return f"records{bits}x{block}:{n}x{k}:{name}"


@dataclass(frozen=True)
class QuantizedPanels(QuantizedWeights):
    """Constant low-bit B `[N, K]` in panels: an element is (level - zero) * scale - minimum.

    A record holds one block of K of the WIDTH columns of a panel: levels, scales, minima.

    Attributes:
        n: Columns of B.
        k: Size of K, the summed axis.
        bits: Bits per level in the records: 4 or 8.
        block: Elements of K per scale: 16 or 32.
        zero: Level that means 0.
        has_minima: Whether blocks have minima.
        wide_scales: Whether scales and minima are float32; else float16.
        value: The constant that B is decoded from.
        name: Part of the layout name that distinguishes records of the same `value`, such as by the
            names of their scales.
        rows: Decodes rows `first` to `end` (exclusive) of B from the elements of `value`:
            rows(elements, first, end).
        type: GGUF block type of `value`; None if it is not a GGUF tensor.
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
        """Macros that describe the panels to kernels: common/dots.clh."""
        return {
            "DOT_BLOCK": self.block,
            "BITS": self.bits,
            "ZERO_LEVEL": self.zero,
            "HAS_MINIMA": int(self.has_minima),
            "SCALE_BYTES": 4 if self.wide_scales else 2,
        }

    def args(self, columns: int) -> dict[str, Any]:
        return {"b": self.packed}

    @property
    def blocks(self) -> int:
        """Number of blocks in each column of B."""
        return ceil_div(self.k, self.block)

    @property
    def record(self) -> int:
        """Bytes per record: levels, scales and minima of one block of a panel."""
        scales = (1 + self.has_minima) * (4 if self.wide_scales else 2)
        return WIDTH * (self.block * self.bits // 8 + scales)

    @property
    def packed(self) -> PackedWeight:
        """B as a packed weight: a record for each panel and each block of the summed axis."""
        count = ceil_div(self.n, WIDTH) * self.blocks
        name = records_layout(self.bits, self.block, self.n, self.k, self.name)
        layout = {"BITS": self.bits, "DOT_BLOCK": self.block, "HAS_MINIMA": int(self.has_minima)}
        packing = BlockPacking("pack_levels", layout, WIDTH, self.blocks * self.record)
        on_device = None if self.wide_scales else packing.of(self.type, self.n, self.k)
        return PackedWeight(self.value, name, self._pack, count * self.record, on_device)

    def row_records(self, rows: int) -> int:
        """Returns the size in bytes of `rows` rows of A after the kernel has quantized them."""
        return rows * self.blocks * (self.block + ROW_TAIL)

    def _pack(self, array: Array) -> Array:
        """Packs elements of `value` into panels on the host, uint8 [panels, blocks, record]."""
        panels = ceil_div(self.n, WIDTH)
        records = np.empty((panels, self.blocks, self.record), np.uint8)
        # In chunks, so that the unpacked levels of a large weight never exist all at once.
        for first in range(0, panels, _PANELS_PER_CHUNK):
            end = min(first + _PANELS_PER_CHUNK, panels)
            rows = self.rows(array, first * WIDTH, min(end * WIDTH, self.n))
            self._pack_panels(records[first:end], rows)
        return records

    def _pack_panels(self, records: Array, rows: DecodedRows) -> None:
        """Packs decoded rows of B, zero-padded to whole panels.

        Args:
            records: Destination, uint8 [panel, block, bytes per record].
            rows: The decoded rows.
        """
        panels = len(records)
        count, k = rows.levels.shape
        levels = rows.levels
        if (count, k) != (panels * WIDTH, self.blocks * self.block):
            levels = np.zeros((panels * WIDTH, self.blocks * self.block), np.uint8)
            levels[:count, :k] = rows.levels
        # Four neighbours along K are moved as one uint32.
        fours: Array = np.ascontiguousarray(levels).view(np.uint32)
        fours = fours.reshape(len(levels), self.blocks, -1)
        if self.bits == 4:
            middle = fours.shape[2] // 2
            fours = fours[:, :, :middle] | fours[:, :, middle:] << 4
        depth = fours.shape[2]
        halves = fours.reshape(panels, WIDTH // _COLUMNS, _COLUMNS, self.blocks, depth)
        start = depth * WIDTH * _DOT_DEPTH
        packed = np.empty((panels, self.blocks, depth, WIDTH // _COLUMNS, _COLUMNS), np.uint32)
        packed[...] = halves.transpose(0, 3, 4, 1, 2)
        records[:, :, :start] = packed.view(np.uint8).reshape(panels, self.blocks, start)
        for numbers in (rows.scales, rows.minima)[: 1 + self.has_minima]:
            columns = np.zeros((panels * WIDTH, self.blocks), np.float32)
            if numbers is not None:
                columns[:count] = numbers
            with np.errstate(over="ignore"):  # a file may contain any scale
                stored = columns.astype(np.float32 if self.wide_scales else np.float16)
            by_block = stored.reshape(panels, WIDTH, self.blocks).swapaxes(1, 2)
            raw = np.ascontiguousarray(by_block).view(np.uint8)
            records[:, :, start : start + raw.shape[2]] = raw
            start += raw.shape[2]


def rounded_rows(a: Array, block: int) -> Array:
    """Rounds rows of A to int8 levels per block, as the kernels do; returns the rows as float32.

    Args:
        a: Rows of A.
        block: Elements of a row per block.
    """
    *rows, k = a.shape
    count = ceil_div(k, block)
    padded = np.zeros((*rows, count * block), np.float32)
    padded[..., :k] = a
    blocks = padded.reshape(*rows, count, block)
    largest = np.abs(blocks).max(axis=-1, keepdims=True, initial=0.0)
    with np.errstate(all="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
        levels = np.rint(blocks * inverse)
    return np.asarray(levels * (largest / np.float32(127))).reshape(padded.shape)[..., :k]


def in_half(rows: DecodedRows) -> Array:
    """Returns the float32 elements of decoded rows, with scales and minima rounded to float16."""
    with np.errstate(over="ignore"):
        halves = [None if x is None else x.astype(np.float16) for x in (rows.scales, rows.minima)]
    scales, minima = (
        None if x is None else x.astype(np.float32).repeat(rows.block, axis=1) for x in halves
    )
    assert scales is not None
    values = (rows.levels.astype(np.float32) - rows.zero) * scales
    return values if minima is None else values - minima


def fits_half(numbers: Array) -> bool:
    """Returns whether float16 represents all numbers exactly."""
    with np.errstate(over="ignore"):
        return bool(np.all(numbers.astype(np.float16).astype(np.float32) == numbers))
