"""Records of weights in blocks of GGUF that hold all that the blocks do, and the way back."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME, BlockType
from clrt.ir.op import Array
from clrt.kernels.quantized_panels_cpu import WIDTH, records_layout
from clrt.util.math import ceil_div

_SIGN = np.uint8(0x80)
# By type, what of a block's bytes differs in records: levels of signed bytes have the top bit
# flipped, and minima have the other sign. The scales of other types are wider than those of
# records, or their levels are.
_FLIPPED_LEVELS = {"Q4_0": False, "Q4_1": False, "Q8_0": True}
_SIZE = "([1-9][0-9]{0,9})"
_NAME = re.compile(rf"records[48]x32:{_SIZE}x{_SIZE}:({'|'.join(_FLIPPED_LEVELS)})")


@dataclass(frozen=True)
class GgufRecordLayout:
    """Rows of blocks, uint8 `[N, bytes of a row]`, as records `[panel, block, bytes]`."""

    type: BlockType
    n: int
    k: int

    @property
    def bits(self) -> int:
        """Of a level."""
        assert self.type.coding is not None
        return self.type.coding.bits

    @property
    def numbers(self) -> int:
        """Of a block, besides levels: a scale, and perhaps a minimum."""
        return 1 + self.type.has_minima

    @property
    def layout(self) -> str:
        """Names the layout; `named_records` reads it."""
        return records_layout(self.bits, self.type.elements, self.n, self.k, self.type.name)

    def packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape of the records; None where the elements are no such rows."""
        if shape != (self.n, self.type.row_bytes(self.k)):
            return None
        return (ceil_div(self.n, WIDTH), self.k // self.type.elements, WIDTH * self.type.nbytes)

    def restore(self, records: Array, shape: tuple[int, ...]) -> Array:
        """The rows of blocks again."""
        panels, blocks, _ = records.shape
        levels_bytes = self.type.elements * self.bits // 8
        levels, numbers = np.split(records, [WIDTH * levels_bytes], axis=2)
        # Four bytes of a column lie together, and the two of a number.
        fours = levels.reshape(panels, blocks, levels_bytes // 4, WIDTH, 4)
        twos = numbers.reshape(panels, blocks, self.numbers, WIDTH, 2)
        rows = np.empty((panels, WIDTH, blocks, self.type.nbytes), np.uint8)
        head = 2 * self.numbers
        rows[..., :head] = twos.transpose(0, 3, 1, 2, 4).reshape(panels, WIDTH, blocks, head)
        rows[..., head:] = fours.transpose(0, 3, 1, 2, 4).reshape(panels, WIDTH, blocks, -1)
        if _FLIPPED_LEVELS[self.type.name]:
            rows[..., head:] ^= _SIGN
        if self.type.has_minima:
            rows[..., head - 1] ^= _SIGN
        return rows.reshape(panels * WIDTH, -1)[: self.n].reshape(shape)


def named_records(layout: str) -> GgufRecordLayout | None:
    """The records that `GgufRecordLayout.layout` names so; None where it names none."""
    named = _NAME.fullmatch(layout)
    if named is None:
        return None
    type_, k = BLOCK_TYPES_BY_NAME[named[3]], int(named[2])
    found = GgufRecordLayout(type_, int(named[1]), k)
    return None if k % type_.elements or found.layout != layout else found
