"""The block types of GGUF: how large their blocks are, and what these hold.

A row is a whole number of blocks. All but the types of plain numbers give an element as
`(level - zero) * scale - minimum`, with a scale, and a minimum if any, per sub-block of 16 or 32
elements. That holds of types with a table or a grid, too: its values are the levels.

Source: llama.cpp, ggml/src/ggml-common.h and ggml.c (`type_traits`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from clrt.formats.gguf import decode
from clrt.formats.gguf.decode import SIGNED, SIGNED_FIVE_BITS, Bytes, Floats, Unpacked

SCALE_OFFSETS: Mapping[str, tuple[int, ...]] = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_XS": (0,),
}
"""Where a block has the float16 numbers that its scales, and its minima, are multiplied by.

Of these types scales and minima are integers of 8 bits but for that.
"""
HALF_SCALES = frozenset(
    ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "IQ4_NL", "TQ1_0", "TQ2_0", "Q1_0", "NVFP4")
)
"""Types whose scales and minima float16 holds as they are."""
_ONE = np.array([1], "<f2").view(np.uint8)
# Elements that are unpacked at once: what lies between bytes and floats stays in the caches.
_CHUNK_ELEMS = 1 << 18


@dataclass(frozen=True)
class DecodedRows:
    """Rows of a quantised tensor taken apart: value = (level - zero) * scale - minimum.

    Attributes:
        bits: Bits that hold any level: 2, 3, 4, 5, 6 or 8.
        block: Consecutive elements that share a scale: 16 or 32.
        levels: [rows, cols].
        scales: [rows, cols / block].
        minima: As `scales`; None where they are all 0.
        zero: The level that stands for 0.

    Numerics:
        Evaluated in float32 in this order, the value is that of `BlockType.dequantise` to the bit.
    """

    bits: int
    block: int
    levels: Bytes
    scales: Floats
    minima: Floats | None
    zero: int


@dataclass(frozen=True)
class BlockEncoding:
    """How the elements of a quantised type are coded; the fields are as those of `DecodedRows`."""

    bits: int
    block: int
    zero: int
    unpack: Callable[[Bytes], Unpacked]

    @property
    def has_minima(self) -> bool:
        """Whether sub-blocks have minima: where no level stands for 0."""
        return self.zero == 0


@dataclass(frozen=True)
class BlockType:
    """How elements of one type lie in a file.

    Attributes:
        code: Its number in files.
        elements: Elements per block.
        nbytes: Bytes per block.
        dtype: The dtype of plain numbers; None for quantised types.
        coding: None for plain numbers.
    """

    name: str
    code: int
    elements: int
    nbytes: int
    dtype: np.dtype[Any] | None = None
    coding: BlockEncoding | None = None

    def row_bytes(self, cols: int) -> int:
        """The bytes of a row, whose columns are a multiple of `elements`."""
        return cols // self.elements * self.nbytes

    def dequantise(self, raw: Bytes) -> Floats:
        """The values of rows as float32; plain integers and F64 are rounded to it.

        Args:
            raw: [..., bytes per row].

        Returns:
            [..., cols]. Bytes of F32 are not copied where they are aligned.
        """
        raw = np.ascontiguousarray(raw)
        if self.dtype is not None:
            return np.require(raw.view(self.dtype), requirements="A").astype(np.float32, copy=False)
        cols = raw.shape[-1] // self.nbytes * self.elements
        made = np.empty((*raw.shape[:-1], cols), np.float32)
        blocks, values = raw.reshape(-1, self.nbytes), made.reshape(-1, self.elements)
        for at in self._chunks(len(blocks)):
            self._evaluate(blocks[at], values[at])
        return made

    def _evaluate(self, blocks: Bytes, out: Floats) -> None:
        """The values of blocks, into `out`: [blocks, elements]."""
        coding = self.coding
        assert coding is not None
        with np.errstate(invalid="ignore", over="ignore"):  # a file may hold any scale
            levels, scales, minima = coding.unpack(blocks)
            np.subtract(levels, np.float32(coding.zero), out=out, dtype=np.float32)
            parts = out.reshape(*scales.shape, -1)
            parts *= scales[..., None]
            if minima is not None:
                parts -= minima[..., None]

    @cached_property
    def has_minima(self) -> bool:
        """Whether minima are subtracted from the elements."""
        blocks = np.zeros((1, self.nbytes), np.uint8)
        return self.coding is not None and self.coding.unpack(blocks).minima is not None

    def levels(self, raw: Bytes) -> DecodedRows:
        """Rows of a quantised type taken apart.

        Args:
            raw: [rows, bytes per row].

        Raises:
            ValueError: The type is one of plain numbers.
        """
        coding = self.coding
        if coding is None:
            raise ValueError(f"{self.name} holds plain numbers and has no levels")
        raw = np.ascontiguousarray(raw)
        blocks = raw.reshape(-1, self.nbytes)
        levels = np.empty((len(blocks), self.elements), np.uint8)
        scales = np.empty((len(blocks), self.elements // coding.block), np.float32)
        minima = np.empty_like(scales) if coding.has_minima else None
        for at in self._chunks(len(blocks)):
            with np.errstate(invalid="ignore", over="ignore"):
                unpacked = coding.unpack(blocks[at])
            levels[at] = unpacked.levels
            _spread(unpacked.scales, scales[at])
            if minima is not None and unpacked.minima is not None:
                _spread(unpacked.minima, minima[at])
        rows, cols = len(raw), raw.shape[1] // self.nbytes * self.elements
        sub_blocks = rows, cols // coding.block
        return DecodedRows(
            coding.bits,
            coding.block,
            levels.reshape(rows, cols),
            scales.reshape(sub_blocks),
            None if minima is None else minima.reshape(sub_blocks),
            coding.zero,
        )

    def whole_levels(self, raw: Bytes) -> tuple[DecodedRows, list[Bytes]]:
        """As `levels`, with integer scales and minima; the type must be in `SCALE_OFFSETS`.

        Returns:
            With the levels, the bytes of the float16 numbers that scales are multiplied by, and of
            those of minima: [rows, 2 * blocks].
        """
        blocks = np.array(raw).reshape(-1, self.nbytes)
        halves = []
        for at in SCALE_OFFSETS[self.name]:
            halves.append(np.array(blocks[:, at : at + 2]).reshape(len(raw), -1))
            blocks[:, at : at + 2] = _ONE
        return self.levels(blocks.reshape(raw.shape)), halves

    def _chunks(self, blocks: int) -> Iterator[slice]:
        """So many blocks as a few at a time."""
        step = _CHUNK_ELEMS // self.elements
        return (slice(at, at + step) for at in range(0, blocks, step))


def _spread(given: Floats, out: Floats) -> None:
    """Numbers per block, each for as many sub-blocks as `out` has."""
    out.reshape(*given.shape, -1)[:] = given[..., None]


def _plain(name: str, code: int, dtype: Any) -> BlockType:
    made = np.dtype(dtype)
    return BlockType(name, code, 1, made.itemsize, made)


def _coded(name: str, code: int, elements: int, nbytes: int, *coding: Any) -> BlockType:
    return BlockType(name, code, elements, nbytes, None, BlockEncoding(*coding))


# Of the quantised: elements and bytes per block; bits of a level, elements per scale, zero.
_TYPES = (
    _plain("F32", 0, "<f4"),
    _plain("F16", 1, "<f2"),
    _coded("Q4_0", 2, 32, 18, 4, 32, 8, decode.q4_0),
    _coded("Q4_1", 3, 32, 20, 4, 32, 0, decode.q4_1),
    _coded("Q5_0", 6, 32, 22, 5, 32, 16, decode.q5_0),
    _coded("Q5_1", 7, 32, 24, 5, 32, 0, decode.q5_1),
    _coded("Q8_0", 8, 32, 34, 8, 32, SIGNED, decode.q8_0),
    _coded("Q8_1", 9, 32, 36, 8, 32, SIGNED, decode.q8_1),
    _coded("Q2_K", 10, 256, 84, 2, 16, 0, decode.q2_k),
    _coded("Q3_K", 11, 256, 110, 3, 16, 4, decode.q3_k),
    _coded("Q4_K", 12, 256, 144, 4, 32, 0, decode.q4_k),
    _coded("Q5_K", 13, 256, 176, 5, 32, 0, decode.q5_k),
    _coded("Q6_K", 14, 256, 210, 6, 16, 32, decode.q6_k),
    _coded("Q8_K", 15, 256, 292, 8, 32, SIGNED, decode.q8_k),
    _coded("IQ2_XXS", 16, 256, 66, 8, 32, SIGNED, decode.iq2_xxs),
    _coded("IQ2_XS", 17, 256, 74, 8, 16, SIGNED, decode.iq2_xs),
    _coded("IQ3_XXS", 18, 256, 98, 8, 32, SIGNED, decode.iq3_xxs),
    _coded("IQ1_S", 19, 256, 50, 5, 32, SIGNED_FIVE_BITS, decode.iq1_s),
    _coded("IQ4_NL", 20, 32, 18, 8, 32, SIGNED, decode.iq4_nl),
    _coded("IQ3_S", 21, 256, 110, 5, 32, SIGNED_FIVE_BITS, decode.iq3_s),
    _coded("IQ2_S", 22, 256, 82, 8, 16, SIGNED, decode.iq2_s),
    _coded("IQ4_XS", 23, 256, 136, 8, 32, SIGNED, decode.iq4_xs),
    _plain("I8", 24, "i1"),
    _plain("I16", 25, "<i2"),
    _plain("I32", 26, "<i4"),
    _plain("I64", 27, "<i8"),
    _plain("F64", 28, "<f8"),
    _coded("IQ1_M", 29, 256, 56, 5, 16, SIGNED_FIVE_BITS, decode.iq1_m),
    _plain("BF16", 30, ml_dtypes.bfloat16),
    _coded("TQ1_0", 34, 256, 54, 2, 32, 1, decode.tq1_0),
    _coded("TQ2_0", 35, 256, 66, 2, 32, 1, decode.tq2_0),
    _coded("MXFP4", 39, 32, 17, 5, 32, SIGNED_FIVE_BITS, decode.mxfp4),
    _coded("NVFP4", 40, 64, 36, 5, 16, SIGNED_FIVE_BITS, decode.nvfp4),
    _coded("Q1_0", 41, 128, 18, 2, 32, 1, decode.q1_0),
)
# By code, as files have it, and by name.
BLOCK_TYPES: Mapping[int, BlockType] = {t.code: t for t in _TYPES}
BLOCK_TYPES_BY_NAME: Mapping[str, BlockType] = {t.name: t for t in _TYPES}
