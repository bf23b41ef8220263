"""Lossless record layout of GGUF block types for CPU kernels, and its inverse."""

from __future__ import annotations

import re

import numpy as np

from clrt.formats.gguf.block_type import SIGNED, BlockEncoding, BlockType
from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.ir.op import Array
from clrt.kernels.quantized_panels_cpu import WIDTH, records_layout
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

_SIGN = np.uint8(0x80)
_SIZE = "([1-9][0-9]{0,9})"
_NAME = re.compile(rf"records[48]x[1-9][0-9]?:{_SIZE}x{_SIZE}:(\w+)")


@dataclass(frozen=True)
class GgufRecordLayout:
    """Layout of GGUF rows, uint8 `[N, bytes per row]`, as records `[panel, block, bytes]`.

    A record has one block of each row of a panel.

    Attributes:
        type: GGUF block type.
        n: Number of rows.
        k: Elements per row.
    """

    type: BlockType
    n: int
    k: int

    @property
    def coding(self) -> BlockEncoding:
        """Encoding of the block type; requires a quantized type, not a plain dtype."""
        assert self.type.coding is not None
        return self.type.coding

    @property
    def numbers(self) -> int:
        """Float16 numbers per block: 1 (scale) or 2 (scale and minimum)."""
        return 1 + self.type.has_minima

    @property
    def layout(self) -> str:
        """Name of this record layout, which `named_records` parses."""
        return records_layout(self.coding.bits, self.type.elements, self.n, self.k, self.type.name)

    def packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Returns the shape of the records; None if `shape` is not the shape of the GGUF rows.

        Args:
            shape: Shape of the unpacked array, uint8 `[N, bytes per row]`.
        """
        if shape != (self.n, self.type.row_bytes(self.k)):
            return None
        return (ceil_div(self.n, WIDTH), self.k // self.type.elements, WIDTH * self.type.nbytes)

    def restore(self, records: Array, shape: tuple[int, ...]) -> Array:
        """Converts packed records back to GGUF rows.

        Args:
            records: Packed array, uint8 `[panel, block, bytes]`.
            shape: Shape of the result, `[N, bytes per row]`.
        """
        panels, blocks, _ = records.shape
        levels_bytes = self.type.elements * self.coding.bits // 8
        levels, numbers = np.split(records, [WIDTH * levels_bytes], axis=2)
        # Records interleave columns in units of 4 bytes of levels and 2 bytes of numbers.
        fours = levels.reshape(panels, blocks, levels_bytes // 4, WIDTH, 4)
        twos = numbers.reshape(panels, blocks, self.numbers, WIDTH, 2)
        rows = np.empty((panels, WIDTH, blocks, self.type.nbytes), np.uint8)
        head = 2 * self.numbers
        rows[..., :head] = twos.transpose(0, 3, 1, 2, 4).reshape(panels, WIDTH, blocks, head)
        rows[..., head:] = fours.transpose(0, 3, 1, 2, 4).reshape(panels, WIDTH, blocks, -1)
        # Records hold signed levels without a sign, and subtract minima.
        if self.coding.zero == SIGNED:
            rows[..., head:] ^= _SIGN
        if self.type.has_minima:
            rows[..., head - 1] ^= _SIGN
        return rows.reshape(panels * WIDTH, -1)[: self.n].reshape(shape)


def named_records(layout: str) -> GgufRecordLayout | None:
    """Parses the name of a record layout of GGUF weights; returns None for other layouts."""
    match = _NAME.fullmatch(layout)
    if match is None:
        return None
    type_, k = BLOCK_TYPES_BY_NAME.get(match[3]), int(match[2])
    if type_ is None or type_.coding is None or not type_.coding.restorable:
        return None
    parsed = GgufRecordLayout(type_, int(match[1]), k)
    return None if k % type_.elements or parsed.layout != layout else parsed
