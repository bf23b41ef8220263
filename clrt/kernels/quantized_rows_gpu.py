"""Low-bit weights packed by rows for GPU kernels (common/level_rows.clh)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any

import numpy as np

from clrt.formats.gguf.block_type import BlockType
from clrt.ir.cl_code import Define
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.block_packing import BlockPacking
from clrt.kernels.quantized_weights import QuantizedWeights
from clrt.kernels.spec import (
    PackedWeight,
)
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

# Alignment of rows in bytes, so that the loads of neighbouring work-items coalesce.
_ALIGNMENT = 16
_WORD_BITS = 32
# Elements packed at a time on the host, which bounds the memory of unpacked levels.
_CHUNK_ELEMS = 1 << 20
# Work-items per work-group of the packing kernel.
_ITEMS = 64


def stored_bits(bits: int) -> tuple[int, int]:
    """Returns the numbers of low and high bits that a level of `bits` bits is stored as.

    High bits are in a separate field of the row; their number is 0 if there is no such field.
    """
    if bits in (5, 6):
        return 4, bits - 4
    return 2 if bits <= 2 else 4 if bits <= 4 else 8, 0


def pack_fields(levels: Array, bits: int) -> Array:
    """Packs levels of 1, 2, 4 or 8 bits; returns uint8 `[rows, bytes]`.

    Args:
        levels: uint8 `[rows, k]`.
        bits: Bits per level. A byte holds 8 / bits levels, the first one in the low bits.
    """
    fields = levels.reshape(len(levels), -1, 8 // bits)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(fields << shifts, axis=-1))


@dataclass(frozen=True)
class PackedQuantizedRows(QuantizedWeights):
    """Constant low-bit B `[N, K]` packed by rows: an element is (level - zero) * scale - minimum.

    Attributes:
        value: The constant that B is decoded from.
        name: Part of the layout name that distinguishes rows of the same `value`, such as by the
            names of their scales.
        n: Columns of B, each of which is a packed row.
        k: Size of K, the summed axis.
        block: Elements of K per scale; a multiple of `word`.
        bits: Low bits per level, stored together: 2, 4 or 8.
        high: High bits per level, stored in a separate field: 0, or 1 or 2 if `bits` is 4.
        zero: Level that means 0.
        has_minima: Whether blocks have minima.
        scale_bytes: Bytes per scale and per minimum: 4 (float32), 2 (float16), or 1 (integers, each
            multiplied by a float16 factor that several blocks share).
        shared: Number of blocks that share a float16 factor, if `scale_bytes` is 1.
        parts: Decodes rows `first` to `end` (exclusive) from the elements of `value`:
            parts(elements, first, end). Returns fields, each `[rows, …]`: bytes of levels, bytes of
            high bits, scales, minima, float16 factors of scales, float16 factors of minima.
        type: GGUF block type of `value`; None if it is not a GGUF tensor.
    """

    value: Value
    name: str
    n: int
    k: int
    block: int
    bits: int
    high: int
    zero: int
    has_minima: bool
    scale_bytes: int
    shared: int
    parts: Callable[[Array, int, int], Iterable[Array]] = field(repr=False)
    type: BlockType | None = None

    @property
    def word(self) -> int:
        """Number of elements of a row whose low bits share a 32-bit word."""
        return _WORD_BITS // self.bits

    @property
    def blocks(self) -> int:
        """Number of blocks per row."""
        return ceil_div(self.k, self.block)

    @property
    def pitch(self) -> int:
        """Size of a packed row in bytes."""
        numbers = self.blocks * self.scale_bytes
        if self.scale_bytes == 1:
            numbers += 2 * self.blocks // self.shared
        levels = self.blocks * self.block * (self.bits + self.high) // 8
        return round_up(levels + (1 + self.has_minima) * numbers, _ALIGNMENT)

    @property
    def defines(self) -> dict[str, Define]:
        """Macros that describe the packed rows to kernels: common/level_rows.clh."""
        return {
            "BITS": self.bits,
            "HIGH_BITS": self.high,
            "LEVEL_BLOCK": self.block,
            "ZERO_LEVEL": self.zero,
            "HAS_MINIMA": int(self.has_minima),
            "SCALE_BYTES": self.scale_bytes,
            "SHARED": self.shared,
        }

    def args(self, columns: int) -> dict[str, Any]:
        return {"b": self.packed, "blocks": self.blocks, "pitch": self.pitch}

    @property
    def packed(self) -> PackedWeight:
        """B as a packed weight: a row of `pitch` bytes for each column of B."""
        form = f"{self.bits}+{self.high}x{self.block}x{self.scale_bytes}"
        name = f"rows{form}:{self.n}x{self.k}:{self.name}"
        sizes = {"blocks": self.blocks, "pitch": self.pitch}
        packing = BlockPacking(
            "pack_level_rows", self.defines, 1, self.pitch, _ITEMS, self.blocks, sizes
        )
        # The kernel stores no scales in float32.
        on_device = packing.of(self.type, self.n, self.k) if self.scale_bytes < 4 else None
        return PackedWeight(self.value, name, self._pack, self.n * self.pitch, on_device)

    def _pack(self, array: Array) -> Array:
        """Packs elements of `value` into padded rows on the host; returns uint8 [n, pitch]."""
        rows = np.zeros((self.n, self.pitch), np.uint8)
        # In chunks, so that the unpacked levels of a large weight never exist all at once.
        step = max(_CHUNK_ELEMS // self.k, 1)
        for first in range(0, self.n, step):
            end, at = min(first + step, self.n), 0
            for part in self.parts(array, first, end):
                raw = np.ascontiguousarray(part).view(np.uint8)
                rows[first:end, at : at + raw.shape[1]] = raw
                at += raw.shape[1]
        return rows
