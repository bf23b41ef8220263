"""How the block types of GGUF pack their elements, one function per type.

Each takes blocks, a byte array [blocks, bytes per block], and returns `Unpacked`.

Source: llama.cpp, ggml/src/ggml-common.h (the structs) and ggml-quants.c (`dequantize_row_*`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clrt.formats.gguf.codebooks import grid, signs

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Levels of types with signed bytes, or with values of a table: as signed bytes with the top bit
# flipped.
SIGNED = 128
# The zero of types whose values are from -15 to 15.
SIGNED_FIVE_BITS = 16
# What four bits mean in IQ4 types, and in those of E2M1 numbers (twice their value).
_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_IQ4_LEVELS = np.array(_IQ4_VALUES, np.int16).astype(np.uint8) + np.uint8(SIGNED)
_E2M1_LEVELS = np.array(_E2M1_VALUES, np.int16).astype(np.uint8) + np.uint8(SIGNED_FIVE_BITS)
# Python's own numbers would make types unclear to mypy.
_FOUR, _SIX = np.uint8(4), np.uint8(6)
_FOUR_BITS, _SIX_BITS = np.uint8(15), np.uint8(63)


class Unpacked(NamedTuple):
    """What blocks hold.

    Attributes:
        levels: Unsigned integers, [blocks, elements].
        scales: Per sub-block, [blocks, sub-blocks].
        minima: As `scales`; None where the type has none.
    """

    levels: Bytes
    scales: Floats
    minima: Floats | None = None


def _split(blocks: Bytes, *sizes: int) -> list[Bytes]:
    """The fields of a block, by their sizes in bytes; the last takes the rest."""
    return np.split(blocks, np.cumsum(sizes), axis=1)


def _halves(field: Bytes) -> Floats:
    return field.view("<f2").astype(np.float32)


def _narrow(field: Bytes, bits: int, run: int) -> Bytes:
    """Elements of fewer than eight bits.

    Args:
        run: So many bytes hold as many elements in their low bits, then as many in the next ones.
    """
    if bits == run == 1:
        return np.unpackbits(field, axis=1, bitorder="little")
    count, size = field.shape
    runs = field.reshape(count, size // run, run)
    made = np.empty((count, size // run, 8 // bits, run), np.uint8)
    for place in range(8 // bits):
        np.right_shift(runs, place * bits, out=made[:, :, place])
    made &= (1 << bits) - 1
    return made.reshape(count, size * 8 // bits)


def _joined(low: Bytes, high: Bytes, bits: int) -> Bytes:
    """Elements from their low bits, so many, and the rest."""
    return np.bitwise_or(low, np.left_shift(high, np.uint8(bits)))


def q1_0(blocks: Bytes) -> Unpacked:
    d, bits = _split(blocks, 2)
    return Unpacked(_narrow(bits, 1, 1) << np.uint8(1), _halves(d))


def q4_0(blocks: Bytes) -> Unpacked:
    d, low = _split(blocks, 2)
    return Unpacked(_narrow(low, 4, 16), _halves(d))


def q4_1(blocks: Bytes) -> Unpacked:
    d, m, low = _split(blocks, 2, 2)
    return Unpacked(_narrow(low, 4, 16), _halves(d), -_halves(m))


def q5_0(blocks: Bytes) -> Unpacked:
    d, high, low = _split(blocks, 2, 4)
    return Unpacked(_joined(_narrow(low, 4, 16), _narrow(high, 1, 1), 4), _halves(d))


def q5_1(blocks: Bytes) -> Unpacked:
    d, m, rest = _split(blocks, 2, 2)
    high, low = _split(rest, 4)
    return Unpacked(_joined(_narrow(low, 4, 16), _narrow(high, 1, 1), 4), _halves(d), -_halves(m))


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
        _narrow(low, 2, 32), _halves(d) * (scales & _FOUR_BITS), _halves(m) * (scales >> _FOUR)
    )


def q3_k(blocks: Bytes) -> Unpacked:
    high, low, scales, d = _split(blocks, 32, 64, 12)
    six = _joined(_narrow(scales[:, :8], 4, 8), _narrow(scales[:, 8:], 2, 4), 4)
    levels = _joined(_narrow(low, 2, 32), _narrow(high, 1, 32), 2)
    return Unpacked(levels, _halves(d) * (six.view(np.int8) - np.int8(32)))


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima of six bits: the low four of the last ones lie at the end."""
    first, second, low = _split(packed, 4, 4)
    scales = (first & _SIX_BITS, _joined(low & _FOUR_BITS, first >> _SIX, 4))
    minima = (second & _SIX_BITS, _joined(low >> _FOUR, second >> _SIX, 4))
    return np.hstack(scales), np.hstack(minima)


def q4_k(blocks: Bytes) -> Unpacked:
    d, m, packed, low = _split(blocks, 2, 2, 12)
    scales, minima = _scales_and_minima(packed)
    return Unpacked(_narrow(low, 4, 32), _halves(d) * scales, _halves(m) * minima)


def q5_k(blocks: Bytes) -> Unpacked:
    d, m, packed, high, low = _split(blocks, 2, 2, 12, 32)
    scales, minima = _scales_and_minima(packed)
    levels = _joined(_narrow(low, 4, 32), _narrow(high, 1, 32), 4)
    return Unpacked(levels, _halves(d) * scales, _halves(m) * minima)


def q6_k(blocks: Bytes) -> Unpacked:
    low, high, scales, d = _split(blocks, 128, 64, 16)
    levels = _joined(_narrow(low, 4, 64), _narrow(high, 2, 32), 4)
    return Unpacked(levels, _halves(d) * scales.view(np.int8))


def tq1_0(blocks: Bytes) -> Unpacked:
    """A byte holds five digits of base 3, as a fraction of 256; the last ones hold four."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)
    first, second, third, d = _split(blocks, 32, 16, 4)
    fields = ((first, 5), (second, 5), (third, 4))
    runs = [(f[:, None] * powers[:n, None]).reshape(len(f), -1) for f, n in fields]
    digits = np.hstack(runs).astype(np.uint16) * np.uint16(3) >> 8
    return Unpacked(digits.astype(np.uint8), _halves(d))


def tq2_0(blocks: Bytes) -> Unpacked:
    low, d = _split(blocks, 64)
    return Unpacked(_narrow(low, 2, 32), _halves(d))


def _e8m0() -> Floats:
    """Half of what an E8M0 byte means: a power of two."""
    return np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


def _ue4m3() -> Floats:
    """Half of what an unsigned E4M3 byte means; the top bit counts for nothing, 0x7F is 0."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    normal = np.ldexp((8 + fraction) / 8, exponent - 8)
    made = np.where(exponent == 0, fraction * 2.0**-10, normal)
    return np.where(code == 0x7F, 0, made).astype(np.float32)


_E8M0, _UE4M3 = _e8m0(), _ue4m3()


def mxfp4(blocks: Bytes) -> Unpacked:
    exponent, low = _split(blocks, 1)
    return Unpacked(_E2M1_LEVELS[_narrow(low, 4, 16)], _E8M0[exponent])


def nvfp4(blocks: Bytes) -> Unpacked:
    scales, low = _split(blocks, 4)
    return Unpacked(_E2M1_LEVELS[_narrow(low, 4, 8)], _UE4M3[scales])


def iq4_nl(blocks: Bytes) -> Unpacked:
    d, low = _split(blocks, 2)
    return Unpacked(_IQ4_LEVELS[_narrow(low, 4, 16)], _halves(d))


def iq4_xs(blocks: Bytes) -> Unpacked:
    d, high, scales, low = _split(blocks, 2, 2, 4)
    six = _joined(_narrow(scales, 4, 1), _narrow(high, 2, 1), 4)
    return Unpacked(
        _IQ4_LEVELS[_narrow(low, 4, 16)], _halves(d) * (six.view(np.int8) - np.int8(32))
    )


def _gridded(name: str, index: NDArray[Any], negative: Bytes, zero: int) -> Bytes:
    """Levels of the types that have the signs apart from the grid.

    Args:
        index: Of the grid's points, [blocks, groups].
        negative: A bit per element, [blocks, bytes].
    """
    points: Bytes = grid(name)[index].reshape(len(index), -1).view(np.uint8)
    minus = _narrow(negative, 1, 1)
    points ^= np.negative(minus)  # with the line after, minus each where the bit is set
    points += minus
    points += np.uint8(zero)
    return points


def _signs_and_scales(words: NDArray[np.uint32]) -> tuple[Bytes, Floats]:
    """What 32 bits per sub-block hold: four indices of signs, and four bits of the scale."""
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
    return _halves(d) * (np.float32(0.5) + _narrow(packed, 4, 1)) * np.float32(0.25)


def iq2_xs(blocks: Bytes) -> Unpacked:
    d, indices, packed = _split(blocks, 2, 64)
    codes = indices.view("<u2")
    levels = _gridded("IQ2_XS", codes & np.uint16(511), signs()[codes >> 9], SIGNED)
    return Unpacked(levels, _quarter_scales(d, packed))


def iq2_s(blocks: Bytes) -> Unpacked:
    d, low, negative, high, packed = _split(blocks, 2, 32, 32, 8)
    index = low | _narrow(high, 2, 1).astype(np.uint16) << 8
    return Unpacked(_gridded("IQ2_S", index, negative, SIGNED), _quarter_scales(d, packed))


def iq3_xxs(blocks: Bytes) -> Unpacked:
    d, index, rest = _split(blocks, 2, 64)
    negative, scales = _signs_and_scales(rest.view("<u4"))
    levels = _gridded("IQ3_XXS", index, negative, SIGNED)
    return Unpacked(levels, _halves(d) * scales * np.float32(0.5))


def iq3_s(blocks: Bytes) -> Unpacked:
    d, low, high, negative, packed = _split(blocks, 2, 64, 8, 32)
    index = low | _narrow(high, 1, 1).astype(np.uint16) << 8
    levels = _gridded("IQ3_S", index, negative, SIGNED_FIVE_BITS)
    return Unpacked(levels, _halves(d) * (2 * _narrow(packed, 4, 1) + 1))


def _shifted(index: NDArray[Any], negative: NDArray[Any]) -> Bytes:
    """Levels of the IQ1 types: every eight elements are moved by an eighth, up or down.

    Args:
        index: Of the grid's points, [blocks, groups].
        negative: Not 0 where down, [blocks, groups].
    """
    moved = np.where(negative, np.int8(SIGNED_FIVE_BITS - 1), np.int8(SIGNED_FIVE_BITS + 1))
    levels: Bytes = (grid("IQ1_S")[index] + moved[:, :, None]).view(np.uint8)
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
    """The float16 scale of a block lies in the top bits of four words."""
    low, rest, packed = _split(blocks, 32, 16)
    words = packed.view("<u2")
    top = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(top, axis=1, keepdims=True).astype("<u2").view(np.uint8)
    three = words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)
    scales = _halves(d) * (2 * three.reshape(len(words), -1) + 1)
    high = _narrow(rest, 4, 1)
    index = low | (high & np.uint16(7)) << 8
    return Unpacked(_shifted(index, high & 8), scales * np.float32(0.125))
