"""Decoders of GGUF block types, one function per type.

Each takes blocks, uint8 [blocks, bytes per block], and returns `Unpacked`.

Source: llama.cpp, ggml/src/ggml-common.h (the structs) and ggml-quants.c (`dequantize_row_*`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clrt.formats.gguf.codebooks import grid, signs

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Level that means 0 in types with int8 levels, or table values: stored as uint8 shifted by 128.
SIGNED = 128
# Level that means 0 in types with levels from -15 to 15.
SIGNED_FIVE_BITS = 16
# Values of 4-bit codes in IQ4 types, and of E2M1 codes (times 2).
_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_IQ4_LEVELS = np.array(_IQ4_VALUES, np.int16).astype(np.uint8) + np.uint8(SIGNED)
_E2M1_LEVELS = np.array(_E2M1_VALUES, np.int16).astype(np.uint8) + np.uint8(SIGNED_FIVE_BITS)
# As NumPy scalars, since Python ints would make result dtypes unclear to mypy.
_FOUR, _SIX = np.uint8(4), np.uint8(6)
_FOUR_BITS, _SIX_BITS = np.uint8(15), np.uint8(63)


class Unpacked(NamedTuple):
    """Decoded blocks: levels, with scales and minima per sub-block.

    Attributes:
        levels: uint8 [blocks, elements].
        scales: float32 [blocks, sub-blocks].
        minima: float32 [blocks, sub-blocks]; None if the type has none.
    """

    levels: Bytes
    scales: Floats
    minima: Floats | None = None


def _split(blocks: Bytes, *sizes: int) -> list[Bytes]:
    """Splits encoded blocks into fields.

    Args:
        blocks: uint8 [blocks, bytes per block].
        sizes: Bytes of each field except the last, which has the remaining bytes.
    """
    return np.split(blocks, np.cumsum(sizes), axis=1)


def _halves(field: Bytes) -> Floats:
    return field.view("<f2").astype(np.float32)


def _unpack_bits(field: Bytes, bits: int, run: int) -> Bytes:
    """Unpacks elements of fewer than 8 bits; returns uint8 [blocks, elements].

    Args:
        field: uint8 [blocks, bytes].
        bits: Bits per element: 1, 2 or 4.
        run: Bytes per run. The lowest bits of all bytes of a run are its first elements; the next
            higher bits are the following elements.
    """
    if bits == run == 1:
        return np.unpackbits(field, axis=1, bitorder="little")
    count, size = field.shape
    runs = field.reshape(count, size // run, run)
    elements = np.empty((count, size // run, 8 // bits, run), np.uint8)
    for index in range(8 // bits):
        np.right_shift(runs, index * bits, out=elements[:, :, index])
    elements &= (1 << bits) - 1
    return elements.reshape(count, size * 8 // bits)


def _joined(low: Bytes, high: Bytes, bits: int) -> Bytes:
    """Joins elements from two fields: `low` has their low `bits` bits, `high` the bits above."""
    return np.bitwise_or(low, np.left_shift(high, np.uint8(bits)))


def q1_0(blocks: Bytes) -> Unpacked:
    d, bits = _split(blocks, 2)
    return Unpacked(_unpack_bits(bits, 1, 1) << np.uint8(1), _halves(d))


def q4_0(blocks: Bytes) -> Unpacked:
    d, low = _split(blocks, 2)
    return Unpacked(_unpack_bits(low, 4, 16), _halves(d))


def q4_1(blocks: Bytes) -> Unpacked:
    d, m, low = _split(blocks, 2, 2)
    return Unpacked(_unpack_bits(low, 4, 16), _halves(d), -_halves(m))


def q5_0(blocks: Bytes) -> Unpacked:
    d, high, low = _split(blocks, 2, 4)
    return Unpacked(_joined(_unpack_bits(low, 4, 16), _unpack_bits(high, 1, 1), 4), _halves(d))


def q5_1(blocks: Bytes) -> Unpacked:
    d, m, rest = _split(blocks, 2, 2)
    high, low = _split(rest, 4)
    return Unpacked(
        _joined(_unpack_bits(low, 4, 16), _unpack_bits(high, 1, 1), 4), _halves(d), -_halves(m)
    )


def q8_0(blocks: Bytes) -> Unpacked:
    d, signed = _split(blocks, 2)
    return Unpacked(signed ^ np.uint8(SIGNED), _halves(d))


def q8_1(blocks: Bytes) -> Unpacked:
    d, _sum, signed = _split(blocks, 2, 2)
    return Unpacked(signed ^ np.uint8(SIGNED), _halves(d))


def q8_k(blocks: Bytes) -> Unpacked:
    d, signed, _sums = _split(blocks, 4, 256)
    return Unpacked(signed ^ np.uint8(SIGNED), d.view("<f4").astype(np.float32))


def q2_k(blocks: Bytes) -> Unpacked:
    scales, low, d, m = _split(blocks, 16, 64, 2)
    return Unpacked(
        _unpack_bits(low, 2, 32), _halves(d) * (scales & _FOUR_BITS), _halves(m) * (scales >> _FOUR)
    )


def q3_k(blocks: Bytes) -> Unpacked:
    high, low, scales, d = _split(blocks, 32, 64, 12)
    six = _joined(_unpack_bits(scales[:, :8], 4, 8), _unpack_bits(scales[:, 8:], 2, 4), 4)
    levels = _joined(_unpack_bits(low, 2, 32), _unpack_bits(high, 1, 32), 2)
    return Unpacked(levels, _halves(d) * (six.view(np.int8) - np.int8(32)))


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Decodes eight 6-bit scales and eight 6-bit minima per block from 12 bytes.

    The last four of each have their low 4 bits in the last four bytes.

    Args:
        packed: uint8 [blocks, 12].
    """
    first, second, low = _split(packed, 4, 4)
    scales = (first & _SIX_BITS, _joined(low & _FOUR_BITS, first >> _SIX, 4))
    minima = (second & _SIX_BITS, _joined(low >> _FOUR, second >> _SIX, 4))
    return np.hstack(scales), np.hstack(minima)


def q4_k(blocks: Bytes) -> Unpacked:
    d, m, packed, low = _split(blocks, 2, 2, 12)
    scales, minima = _scales_and_minima(packed)
    return Unpacked(_unpack_bits(low, 4, 32), _halves(d) * scales, _halves(m) * minima)


def q5_k(blocks: Bytes) -> Unpacked:
    d, m, packed, high, low = _split(blocks, 2, 2, 12, 32)
    scales, minima = _scales_and_minima(packed)
    levels = _joined(_unpack_bits(low, 4, 32), _unpack_bits(high, 1, 32), 4)
    return Unpacked(levels, _halves(d) * scales, _halves(m) * minima)


def q6_k(blocks: Bytes) -> Unpacked:
    low, high, scales, d = _split(blocks, 128, 64, 16)
    levels = _joined(_unpack_bits(low, 4, 64), _unpack_bits(high, 2, 32), 4)
    return Unpacked(levels, _halves(d) * scales.view(np.int8))


def tq1_0(blocks: Bytes) -> Unpacked:
    """Decodes TQ1_0 blocks, whose elements are base-3 digits.

    A byte holds five digits as a fraction of 256; bytes of the third field hold four.
    """
    powers = np.array([1, 3, 9, 27, 81], np.uint8)
    first, second, third, d = _split(blocks, 32, 16, 4)
    fields = ((first, 5), (second, 5), (third, 4))
    runs = [(f[:, None] * powers[:n, None]).reshape(len(f), -1) for f, n in fields]
    digits = np.hstack(runs).astype(np.uint16) * np.uint16(3) >> 8
    return Unpacked(digits.astype(np.uint8), _halves(d))


def tq2_0(blocks: Bytes) -> Unpacked:
    low, d = _split(blocks, 64)
    return Unpacked(_unpack_bits(low, 2, 32), _halves(d))


def _e8m0() -> Floats:
    """Returns half the value of each E8M0 byte, a power of two: float32 [256]."""
    return np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


def _ue4m3() -> Floats:
    """Returns half the value of each unsigned E4M3 byte: float32 [256].

    The top bit is ignored, and 0x7F is 0.
    """
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    normal = np.ldexp((8 + fraction) / 8, exponent - 8)
    values = np.where(exponent == 0, fraction * 2.0**-10, normal)
    return np.where(code == 0x7F, 0, values).astype(np.float32)


_E8M0, _UE4M3 = _e8m0(), _ue4m3()


def mxfp4(blocks: Bytes) -> Unpacked:
    exponent, low = _split(blocks, 1)
    return Unpacked(_E2M1_LEVELS[_unpack_bits(low, 4, 16)], _E8M0[exponent])


def nvfp4(blocks: Bytes) -> Unpacked:
    scales, low = _split(blocks, 4)
    return Unpacked(_E2M1_LEVELS[_unpack_bits(low, 4, 8)], _UE4M3[scales])


def iq4_nl(blocks: Bytes) -> Unpacked:
    d, low = _split(blocks, 2)
    return Unpacked(_IQ4_LEVELS[_unpack_bits(low, 4, 16)], _halves(d))


def iq4_xs(blocks: Bytes) -> Unpacked:
    d, high, scales, low = _split(blocks, 2, 2, 4)
    six = _joined(_unpack_bits(scales, 4, 1), _unpack_bits(high, 2, 1), 4)
    return Unpacked(
        _IQ4_LEVELS[_unpack_bits(low, 4, 16)], _halves(d) * (six.view(np.int8) - np.int8(32))
    )


def _gridded(name: str, index: NDArray[Any], negative: Bytes, zero: int) -> Bytes:
    """Decodes levels of block types with a codebook of magnitudes and separate signs.

    Args:
        name: Name of the codebook.
        index: Indices of the codebook's vectors, [blocks, groups].
        negative: Sign bits, one per element, [blocks, bytes].
        zero: Level that means 0.
    """
    points: Bytes = grid(name)[index].reshape(len(index), -1).view(np.uint8)
    minus = _unpack_bits(negative, 1, 1)
    points ^= np.negative(minus)  # with the next line: negates elements whose sign bit is set
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


def iq2_xxs(blocks: Bytes) -> Unpacked:
    d, rest = _split(blocks, 2)
    pairs = rest.reshape(len(rest), 8, 8)
    words = np.ascontiguousarray(pairs[:, :, 4:]).view("<u4")[:, :, 0]
    negative, scales = _signs_and_scales(words)
    levels = _gridded("IQ2_XXS", pairs[:, :, :4].reshape(len(rest), -1), negative, SIGNED)
    return Unpacked(levels, _halves(d) * scales * np.float32(0.25))


def _quarter_scales(d: Bytes, packed: Bytes) -> Floats:
    return _halves(d) * (np.float32(0.5) + _unpack_bits(packed, 4, 1)) * np.float32(0.25)


def iq2_xs(blocks: Bytes) -> Unpacked:
    d, indices, packed = _split(blocks, 2, 64)
    codes = indices.view("<u2")
    levels = _gridded("IQ2_XS", codes & np.uint16(511), signs()[codes >> 9], SIGNED)
    return Unpacked(levels, _quarter_scales(d, packed))


def iq2_s(blocks: Bytes) -> Unpacked:
    d, low, negative, high, packed = _split(blocks, 2, 32, 32, 8)
    index = low | _unpack_bits(high, 2, 1).astype(np.uint16) << 8
    return Unpacked(_gridded("IQ2_S", index, negative, SIGNED), _quarter_scales(d, packed))


def iq3_xxs(blocks: Bytes) -> Unpacked:
    d, index, rest = _split(blocks, 2, 64)
    negative, scales = _signs_and_scales(rest.view("<u4"))
    levels = _gridded("IQ3_XXS", index, negative, SIGNED)
    return Unpacked(levels, _halves(d) * scales * np.float32(0.5))


def iq3_s(blocks: Bytes) -> Unpacked:
    d, low, high, negative, packed = _split(blocks, 2, 64, 8, 32)
    index = low | _unpack_bits(high, 1, 1).astype(np.uint16) << 8
    levels = _gridded("IQ3_S", index, negative, SIGNED_FIVE_BITS)
    return Unpacked(levels, _halves(d) * (2 * _unpack_bits(packed, 4, 1) + 1))


def _shifted(index: NDArray[Any], negative: NDArray[Any]) -> Bytes:
    """Decodes levels of the IQ1 types, whose groups of 8 elements are shifted by 1/8 up or down.

    Args:
        index: Indices of the codebook's vectors, [blocks, groups].
        negative: Nonzero for groups shifted down, [blocks, groups].
    """
    offsets = np.where(negative, np.int8(SIGNED_FIVE_BITS - 1), np.int8(SIGNED_FIVE_BITS + 1))
    levels: Bytes = (grid("IQ1_S")[index] + offsets[:, :, None]).view(np.uint8)
    return levels.reshape(len(index), -1)


def iq1_s(blocks: Bytes) -> Unpacked:
    d, low, rest = _split(blocks, 2, 32)
    words = rest.view("<u2")
    high = words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)
    index = low | high.reshape(low.shape) << 8
    scales = _halves(d) * (2 * (words >> 12 & np.uint16(7)) + 1)
    negative = np.repeat(words & np.uint16(0x8000), 4, axis=1)
    return Unpacked(_shifted(index, negative), scales * np.float32(0.125))


def iq1_m(blocks: Bytes) -> Unpacked:
    """Decodes IQ1_M blocks, whose float16 scale is in the top 4 bits of four 16-bit words."""
    low, rest, packed = _split(blocks, 32, 16)
    words = packed.view("<u2")
    top = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(top, axis=1, keepdims=True).astype("<u2").view(np.uint8)
    three = words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)
    scales = _halves(d) * (2 * three.reshape(len(words), -1) + 1)
    high = _unpack_bits(rest, 4, 1)
    index = low | (high & np.uint16(7)) << 8
    return Unpacked(_shifted(index, high & 8), scales * np.float32(0.125))
