"""GGUF block types: block sizes, and decoding to floats or to levels, scales and minima.

A row is a whole number of blocks. In quantized types an element is
`(level - zero) * scale - minimum`, with a scale, and in some types a minimum, per sub-block of 16
or 32 elements. Types with a table or a codebook have its values as levels.

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
"""Types with 8-bit integer scales and minima: byte offsets in a block of the float16 factors.

The first is the factor of the scales, the second, if any, that of the minima.
"""
HALF_SCALES = frozenset(
    ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "IQ4_NL", "TQ1_0", "TQ2_0", "Q1_0", "NVFP4")
)
"""Types whose scales and minima are exact in float16."""
# Bytes of the float16 number 1.
_ONE = np.array([1], "<f2").view(np.uint8)
# Elements decoded at a time, so that intermediate arrays stay in the caches.
_CHUNK_ELEMS = 1 << 18


@dataclass(frozen=True)
class DecodedRows:
    """Decoded rows of a quantized tensor: value = (level - zero) * scale - minimum.

    Attributes:
        bits: Bits per level: 2, 3, 4, 5, 6 or 8.
        block: Number of consecutive elements that share a scale: 16 or 32.
        levels: uint8 [rows, cols].
        scales: float32 [rows, cols / block].
        minima: float32 [rows, cols / block]; None if the type has none.
        zero: Level that means 0.

    Numerics:
        The formula in float32, in this order, equals `BlockType.dequantise` bit by bit.
    """

    bits: int
    block: int
    levels: Bytes
    scales: Floats
    minima: Floats | None
    zero: int


@dataclass(frozen=True)
class BlockEncoding:
    """Encoding of a quantized type's elements.

    Attributes:
        bits: Bits per level.
        block: Number of consecutive elements that share a scale: 16 or 32.
        zero: Level that means 0.
        unpack: Decodes blocks, uint8 [blocks, bytes per block].
    """

    bits: int
    block: int
    zero: int
    unpack: Callable[[Bytes], Unpacked]

    @property
    def has_minima(self) -> bool:
        """Whether decoded rows have minima, which is the case if no level means 0."""
        return self.zero == 0


@dataclass(frozen=True)
class BlockType:
    """A tensor type of GGUF.

    Attributes:
        name: Name as in llama.cpp, such as "Q4_K".
        code: Type number in files.
        elements: Elements per block; 1 for plain dtypes.
        nbytes: Bytes per block.
        dtype: NumPy dtype of a plain type; None for quantized types.
        coding: Encoding of a quantized type; None for plain dtypes.
    """

    name: str
    code: int
    elements: int
    nbytes: int
    dtype: np.dtype[Any] | None = None
    coding: BlockEncoding | None = None

    def row_bytes(self, cols: int) -> int:
        """Returns the bytes of an encoded row.

        Args:
            cols: Elements of the row; a multiple of `elements`.
        """
        return cols // self.elements * self.nbytes

    def dequantise(self, raw: Bytes) -> Floats:
        """Decodes rows to float32; plain integers and F64 are rounded.

        Args:
            raw: uint8 [..., bytes per row].

        Returns:
            float32 [..., cols]; a view of `raw` for aligned F32.
        """
        raw = np.ascontiguousarray(raw)
        if self.dtype is not None:
            return np.require(raw.view(self.dtype), requirements="A").astype(np.float32, copy=False)
        cols = raw.shape[-1] // self.nbytes * self.elements
        result = np.empty((*raw.shape[:-1], cols), np.float32)
        blocks, values = raw.reshape(-1, self.nbytes), result.reshape(-1, self.elements)
        for chunk in self._chunks(len(blocks)):
            self._evaluate(blocks[chunk], values[chunk])
        return result

    def _evaluate(self, blocks: Bytes, out: Floats) -> None:
        """Decodes blocks to floats.

        Args:
            blocks: uint8 [blocks, bytes per block].
            out: Destination, float32 [blocks, elements].
        """
        coding = self.coding
        assert coding is not None
        with np.errstate(invalid="ignore", over="ignore"):  # a file may contain any scale
            levels, scales, minima = coding.unpack(blocks)
            np.subtract(levels, np.float32(coding.zero), out=out, dtype=np.float32)
            sub_blocks = out.reshape(*scales.shape, -1)
            sub_blocks *= scales[..., None]
            if minima is not None:
                sub_blocks -= minima[..., None]

    @cached_property
    def has_minima(self) -> bool:
        """Whether blocks of this type store minima."""
        blocks = np.zeros((1, self.nbytes), np.uint8)
        return self.coding is not None and self.coding.unpack(blocks).minima is not None

    def levels(self, raw: Bytes) -> DecodedRows:
        """Decodes rows to levels, scales and minima.

        Args:
            raw: uint8 [rows, bytes per row].

        Raises:
            ValueError: The type is a plain dtype.
        """
        coding = self.coding
        if coding is None:
            raise ValueError(f"{self.name} holds plain numbers and has no levels")
        raw = np.ascontiguousarray(raw)
        blocks = raw.reshape(-1, self.nbytes)
        levels = np.empty((len(blocks), self.elements), np.uint8)
        scales = np.empty((len(blocks), self.elements // coding.block), np.float32)
        minima = np.empty_like(scales) if coding.has_minima else None
        for chunk in self._chunks(len(blocks)):
            with np.errstate(invalid="ignore", over="ignore"):
                unpacked = coding.unpack(blocks[chunk])
            levels[chunk] = unpacked.levels
            _repeat(unpacked.scales, scales[chunk])
            if minima is not None and unpacked.minima is not None:
                _repeat(unpacked.minima, minima[chunk])
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
        """Decodes rows to levels, with scales and minima as integers and float16 factors apart.

        The type must be in `SCALE_OFFSETS`.

        Args:
            raw: uint8 [rows, bytes per row].

        Returns:
            The decoded rows, with integer scales and minima; and the bytes of the factors of the
            scales and, if any, of the minima, each uint8 [rows, 2 * blocks].
        """
        blocks = np.array(raw).reshape(-1, self.nbytes)
        halves = []
        for at in SCALE_OFFSETS[self.name]:
            halves.append(np.array(blocks[:, at : at + 2]).reshape(len(raw), -1))
            blocks[:, at : at + 2] = _ONE
        return self.levels(blocks.reshape(raw.shape)), halves

    def _chunks(self, blocks: int) -> Iterator[slice]:
        """Yields slices that divide a range of blocks, each of about _CHUNK_ELEMS elements.

        Args:
            blocks: Number of blocks.
        """
        step = _CHUNK_ELEMS // self.elements
        return (slice(at, at + step) for at in range(0, blocks, step))


def _repeat(numbers: Floats, out: Floats) -> None:
    """Copies one number per sub-block to all elements of the sub-block.

    Args:
        numbers: [blocks, sub-blocks].
        out: Destination, [blocks, elements].
    """
    out.reshape(*numbers.shape, -1)[:] = numbers[..., None]


def _plain(name: str, code: int, dtype: Any) -> BlockType:
    numpy_dtype = np.dtype(dtype)
    return BlockType(name, code, 1, numpy_dtype.itemsize, numpy_dtype)


def _coded(name: str, code: int, elements: int, nbytes: int, *coding: Any) -> BlockType:
    return BlockType(name, code, elements, nbytes, None, BlockEncoding(*coding))


# Quantized types: name, code, elements and bytes per block; bits per level, elements per scale,
# level that means 0, decoder.
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
# All types, by their code in files and by name.
BLOCK_TYPES: Mapping[int, BlockType] = {t.code: t for t in _TYPES}
BLOCK_TYPES_BY_NAME: Mapping[str, BlockType] = {t.name: t for t in _TYPES}
