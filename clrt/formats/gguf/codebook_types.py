"""GGUF block types whose codes index a table or codebook of values: the IQ types.

Source: llama.cpp, ggml/src/ggml-common.h (the structs) and ggml-quants.c (`dequantize_row_*`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.formats.gguf.block_fields import halves, joined, split, unpack_bits
from clrt.formats.gguf.block_type import (
    SIGNED,
    SIGNED_FIVE_BITS,
    BlockType,
    Bytes,
    Floats,
    Unpacked,
)
from clrt.formats.gguf.codebooks import grid, signs

# Values of 4-bit codes in IQ4 types.
_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_IQ4_LEVELS = np.array(_IQ4_VALUES, np.int16).astype(np.uint8) + np.uint8(SIGNED)


def _iq4_nl(blocks: Bytes) -> Unpacked:
    d, low = split(blocks, 2)
    return Unpacked(_IQ4_LEVELS[unpack_bits(low, 4, 16)], halves(d))


def _iq4_xs(blocks: Bytes) -> Unpacked:
    d, high, scales, low = split(blocks, 2, 2, 4)
    six = joined(unpack_bits(scales, 4, 1), unpack_bits(high, 2, 1), 4)
    return Unpacked(
        _IQ4_LEVELS[unpack_bits(low, 4, 16)], halves(d) * (six.view(np.int8) - np.int8(32))
    )


def _gridded(name: str, index: NDArray[Any], negative: Bytes, zero: int) -> Bytes:
    """Decodes levels of block types that store magnitudes by a codebook, and signs separately.

    Args:
        name: Name of the codebook.
        index: For each group of elements, the index of its vector in the codebook, [blocks,
            groups].
        negative: Sign bits, one per element, uint8 [blocks, bytes].
        zero: Level that means 0.

    Returns:
        Levels, uint8 [blocks, elements].
    """
    points: Bytes = grid(name)[index].reshape(len(index), -1).view(np.uint8)
    minus = unpack_bits(negative, 1, 1)
    # Negates elements whose sign bit is set, by two's complement.
    points ^= np.negative(minus)
    points += minus
    points += np.uint8(zero)
    return points


def _signs_and_scales(words: NDArray[np.uint32]) -> tuple[Bytes, Floats]:
    """Decodes one 32-bit word per sub-block: four 7-bit sign indices and a 4-bit scale.

    Args:
        words: [blocks, sub-blocks].

    Returns:
        Sign bits, one per element, uint8 [blocks, bytes]; and scales, [blocks, sub-blocks].
    """
    index = words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32) & np.uint32(127)
    scales = (words >> np.uint32(28)).astype(np.float32) + np.float32(0.5)
    return signs()[index].reshape(len(words), -1), scales


def _iq2_xxs(blocks: Bytes) -> Unpacked:
    d, rest = split(blocks, 2)
    pairs = rest.reshape(len(rest), 8, 8)
    words = np.ascontiguousarray(pairs[:, :, 4:]).view("<u4")[:, :, 0]
    negative, scales = _signs_and_scales(words)
    levels = _gridded("IQ2_XXS", pairs[:, :, :4].reshape(len(rest), -1), negative, SIGNED)
    return Unpacked(levels, halves(d) * scales * np.float32(0.25))


def _quarter_scales(d: Bytes, packed: Bytes) -> Floats:
    return halves(d) * (np.float32(0.5) + unpack_bits(packed, 4, 1)) * np.float32(0.25)


def _iq2_xs(blocks: Bytes) -> Unpacked:
    d, indices, packed = split(blocks, 2, 64)
    codes = indices.view("<u2")
    levels = _gridded("IQ2_XS", codes & np.uint16(511), signs()[codes >> 9], SIGNED)
    return Unpacked(levels, _quarter_scales(d, packed))


def _iq2_s(blocks: Bytes) -> Unpacked:
    d, low, negative, high, packed = split(blocks, 2, 32, 32, 8)
    index = low | unpack_bits(high, 2, 1).astype(np.uint16) << 8
    return Unpacked(_gridded("IQ2_S", index, negative, SIGNED), _quarter_scales(d, packed))


def _iq3_xxs(blocks: Bytes) -> Unpacked:
    d, index, rest = split(blocks, 2, 64)
    negative, scales = _signs_and_scales(rest.view("<u4"))
    levels = _gridded("IQ3_XXS", index, negative, SIGNED)
    return Unpacked(levels, halves(d) * scales * np.float32(0.5))


def _iq3_s(blocks: Bytes) -> Unpacked:
    d, low, high, negative, packed = split(blocks, 2, 64, 8, 32)
    index = low | unpack_bits(high, 1, 1).astype(np.uint16) << 8
    levels = _gridded("IQ3_S", index, negative, SIGNED_FIVE_BITS)
    return Unpacked(levels, halves(d) * (2 * unpack_bits(packed, 4, 1) + 1))


def _shifted(index: NDArray[Any], negative: NDArray[Any]) -> Bytes:
    """Decodes levels of the IQ1 types, whose groups of 8 elements are shifted by 1/8 up or down.

    Args:
        index: For each group, the index of its vector in the codebook, [blocks, groups].
        negative: Nonzero for groups that are shifted down, [blocks, groups].

    Returns:
        Levels, uint8 [blocks, elements].
    """
    offsets = np.where(negative, np.int8(SIGNED_FIVE_BITS - 1), np.int8(SIGNED_FIVE_BITS + 1))
    levels: Bytes = (grid("IQ1_S")[index] + offsets[:, :, None]).view(np.uint8)
    return levels.reshape(len(index), -1)


def _iq1_s(blocks: Bytes) -> Unpacked:
    d, low, rest = split(blocks, 2, 32)
    words = rest.view("<u2")
    high = words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)
    index = low | high.reshape(low.shape) << 8
    scales = halves(d) * (2 * (words >> 12 & np.uint16(7)) + 1)
    negative = np.repeat(words & np.uint16(0x8000), 4, axis=1)
    return Unpacked(_shifted(index, negative), scales * np.float32(0.125))


def _iq1_m(blocks: Bytes) -> Unpacked:
    """Decodes IQ1_M blocks; the top 4 bits of a block's four 16-bit words are its float16 scale."""
    low, rest, packed = split(blocks, 32, 16)
    words = packed.view("<u2")
    top = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(top, axis=1, keepdims=True).astype("<u2").view(np.uint8)
    three = words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)
    scales = halves(d) * (2 * three.reshape(len(words), -1) + 1)
    high = unpack_bits(rest, 4, 1)
    index = low | (high & np.uint16(7)) << 8
    return Unpacked(_shifted(index, high & 8), scales * np.float32(0.125))


TYPES = (
    BlockType.coded("IQ2_XXS", 16, 256, 66, 8, 32, SIGNED, _iq2_xxs),
    BlockType.coded("IQ2_XS", 17, 256, 74, 8, 16, SIGNED, _iq2_xs),
    BlockType.coded("IQ3_XXS", 18, 256, 98, 8, 32, SIGNED, _iq3_xxs),
    BlockType.coded("IQ1_S", 19, 256, 50, 5, 32, SIGNED_FIVE_BITS, _iq1_s),
    BlockType.coded("IQ4_NL", 20, 32, 18, 8, 32, SIGNED, _iq4_nl, 2),
    BlockType.coded("IQ3_S", 21, 256, 110, 5, 32, SIGNED_FIVE_BITS, _iq3_s),
    BlockType.coded("IQ2_S", 22, 256, 82, 8, 16, SIGNED, _iq2_s),
    BlockType.coded("IQ4_XS", 23, 256, 136, 8, 32, SIGNED, _iq4_xs, 1, (0,)),
    BlockType.coded("IQ1_M", 29, 256, 56, 5, 16, SIGNED_FIVE_BITS, _iq1_m),
)
