"""Weights of few bits as the kernels of GPUs read them (common/level_rows.clh)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clrt.formats.gguf.block_types import BlockType
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.quantized_panels_cpu import PACKED_TYPES
from clrt.kernels.spec import (
    BufferArg,
    DevicePacking,
    KernelSpec,
    Launch,
    PackedWeight,
    Scratch,
    launch,
)
from clrt.util.math import ceil_div, round_up

# Of a row: the loads of neighbouring work-items begin together.
_ALIGNMENT = 16
_WORD_BITS = 32
_CHUNK_ELEMS = 1 << 20
_ITEMS = 64  # of a work-group that packs


def stored_bits(bits: int) -> tuple[int, int]:
    """Of a level of so many bits: how many lie in one place, and how many in another."""
    if bits in (5, 6):
        return 4, bits - 4
    return 2 if bits <= 2 else 4 if bits <= 4 else 8, 0


def pack_fields(levels: Array, bits: int) -> Array:
    """Levels uint8 `[rows, places]`, several to a byte, the first one in the low bits."""
    fields = levels.reshape(len(levels), -1, 8 // bits)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(fields << shifts, axis=-1))


@dataclass(frozen=True)
class PackedQuantizedRows:
    """A constant B of few bits, `[N, K]`: an element is (level - zero) * scale - minimum.

    Attributes:
        value: The constant that rows are read from.
        name: Tells the rows from those of other constants that go with the value.
        block: Places of K with one scale: a multiple of `word`.
        bits: Low ones of a level: 2, 4 or 8.
        high: Those above them: with 4, they may be 1 or 2.
        zero: What is subtracted from each level.
        has_minima: Whether a minimum is subtracted from elements.
        scale_bytes: Of a scale, and of a minimum: 4 and 2 are floats. 1 are integers, which are
            multiplied by a float16 each.
        shared: Blocks that have one such float16.
        parts: What rows `first` to `end` are made of, each `[rows, …]`: bytes of levels, of their
            high bits, scales,
            minima, and the float16 of scales and of minima.
        type: The type of GGUF whose blocks the value holds, if it does.
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
        """Places of K in 32 bits."""
        return _WORD_BITS // self.bits

    @property
    def blocks(self) -> int:
        """Of K."""
        return ceil_div(self.k, self.block)

    @property
    def pitch(self) -> int:
        """Bytes of a row."""
        numbers = self.blocks * self.scale_bytes
        if self.scale_bytes == 1:
            numbers += 2 * self.blocks // self.shared
        levels = self.blocks * self.block * (self.bits + self.high) // 8
        return round_up(levels + (1 + self.has_minima) * numbers, _ALIGNMENT)

    @property
    def defines(self) -> dict[str, Define]:
        """The macros of common/level_rows.clh."""
        return {
            "BITS": self.bits,
            "HIGH_BITS": self.high,
            "LEVEL_BLOCK": self.block,
            "ZERO": self.zero,
            "MINIMA": int(self.has_minima),
            "SCALE_BYTES": self.scale_bytes,
            "SHARED": self.shared,
        }

    @property
    def args(self) -> dict[str, Any]:
        """B, and what LEVEL_INPUTS declares."""
        return {"b": self.packed, "blocks": self.blocks, "pitch": self.pitch}

    @property
    def packed(self) -> PackedWeight:
        """The rows, one after the other."""
        form = f"{self.bits}+{self.high}x{self.block}x{self.scale_bytes}"
        name = f"rows{form}:{self.n}x{self.k}:{self.name}"
        type_, on_device = self.type, None
        if type_ is not None and type_.name in PACKED_TYPES and self.scale_bytes < 4:
            row_bytes = type_.row_bytes(self.k)
            on_device = DevicePacking(self.n, row_bytes, DType.UINT8, 1, self._emit)
        return PackedWeight(self.value, name, self._pack, self.n * self.pitch, on_device)

    def _emit(self, rows: Scratch, packed: Scratch, first: int, end: int) -> Launch:
        """The launch that packs rows of blocks."""
        type_ = self.type
        assert type_ is not None
        file = {"FORMAT": type_.code, "ELEMS": type_.elements, "BYTES": type_.nbytes}
        source, entry = "matmul/pack_level_rows.cl", "pack_level_rows"
        kernel = KernelSpec.of(source, entry, **file, **self.defines)
        count = self.k // type_.elements
        sizes = {"file_blocks": count, "blocks": self.blocks, "pitch": self.pitch}
        to, grid = BufferArg(packed, first * self.pitch), (self.blocks, end - first)
        return launch(kernel, grid, (_ITEMS, 1), y=to, x=rows, **sizes)

    def _pack(self, array: Array) -> Array:
        rows = np.zeros((self.n, self.pitch), np.uint8)
        # By so many at a time, that the levels of a large weight are never all there.
        step = max(_CHUNK_ELEMS // self.k, 1)
        for first in range(0, self.n, step):
            end, at = min(first + step, self.n), 0
            for part in self.parts(array, first, end):
                taken = np.ascontiguousarray(part).view(np.uint8)
                rows[first:end, at : at + taken.shape[1]] = taken
                at += taken.shape[1]
        return rows
