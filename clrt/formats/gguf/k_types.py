"""GGUF block types of 256 elements with integer scales per sub-block: Q2_K to Q6_K, and Q8_K.

Source: llama.cpp, ggml/src/ggml-common.h (the structs) and ggml-quants.c (`dequantize_row_*`).
"""

from __future__ import annotations

import numpy as np

from clrt.formats.gguf.block_fields import halves, joined, split, unpack_bits
from clrt.formats.gguf.block_type import SIGNED, BlockReader, BlockType, Bytes, Unpacked
from clrt.ir.cl_code import Code

# NumPy scalars, because mypy cannot infer the result dtypes of Python ints.
_FOUR, _SIX = np.uint8(4), np.uint8(6)
_FOUR_BITS, _SIX_BITS = np.uint8(15), np.uint8(63)


def _q2_k(blocks: Bytes) -> Unpacked:
    scales, low, d, m = split(blocks, 16, 64, 2)
    return Unpacked(
        unpack_bits(low, 2, 32), halves(d) * (scales & _FOUR_BITS), halves(m) * (scales >> _FOUR)
    )


def _q3_k(blocks: Bytes) -> Unpacked:
    high, low, scales, d = split(blocks, 32, 64, 12)
    six = joined(unpack_bits(scales[:, :8], 4, 8), unpack_bits(scales[:, 8:], 2, 4), 4)
    levels = joined(unpack_bits(low, 2, 32), unpack_bits(high, 1, 32), 2)
    return Unpacked(levels, halves(d) * (six.view(np.int8) - np.int8(32)))


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Decodes eight 6-bit scales and eight 6-bit minima per block from 12 bytes.

    Scales and minima 4 to 7 have their low 4 bits in the last four bytes.

    Args:
        packed: uint8 [blocks, 12].

    Returns:
        Scales and minima, each uint8 [blocks, 8].
    """
    first, second, low = split(packed, 4, 4)
    scales = (first & _SIX_BITS, joined(low & _FOUR_BITS, first >> _SIX, 4))
    minima = (second & _SIX_BITS, joined(low >> _FOUR, second >> _SIX, 4))
    return np.hstack(scales), np.hstack(minima)


def _q4_k(blocks: Bytes) -> Unpacked:
    d, m, packed, low = split(blocks, 2, 2, 12)
    scales, minima = _scales_and_minima(packed)
    return Unpacked(unpack_bits(low, 4, 32), halves(d) * scales, halves(m) * minima)


def _q5_k(blocks: Bytes) -> Unpacked:
    d, m, packed, high, low = split(blocks, 2, 2, 12, 32)
    scales, minima = _scales_and_minima(packed)
    levels = joined(unpack_bits(low, 4, 32), unpack_bits(high, 1, 32), 4)
    return Unpacked(levels, halves(d) * scales, halves(m) * minima)


def _q6_k(blocks: Bytes) -> Unpacked:
    low, high, scales, d = split(blocks, 128, 64, 16)
    levels = joined(unpack_bits(low, 4, 64), unpack_bits(high, 2, 32), 4)
    return Unpacked(levels, halves(d) * scales.view(np.int8))


def _q8_k(blocks: Bytes) -> Unpacked:
    d, signed, _sums = split(blocks, 4, 256)
    return Unpacked(signed ^ np.uint8(SIGNED), d.view("<f4").astype(np.float32))


# OpenCL expression: levels of 4 bits from byte {0} on. Two sub-blocks of 32 share 32 bytes.
_NIBBLES = Code("word_at(x, {0} + part / 2 * 32 + 4 * i) >> (part % 2 * 4) & LOW_4")
# OpenCL expression: levels of 2 bits from byte {0} on. 128 elements share 32 bytes.
_PAIRS = Code("word_at(x, {0} + part / 8 * 32 + PLACE % 32) >> (PLACE / 32 * 2) & LOW_2")
# OpenCL expressions for the 6-bit scale and minimum of a sub-block; see `_scales_and_minima`.
_SCALE = Code("part < 4 ? x[4 + part] & 63 : (x[8 + part] & 15) | x[part] >> 6 << 4")
_MINIMUM = Code("part < 4 ? x[8 + part] & 63 : x[8 + part] >> 4 | x[4 + part] >> 6 << 4")
_READ_Q2_K = BlockReader(_PAIRS.substitute(16), Code("x[part] & 15"), Code("x[part] >> 4"))
_READ_Q3_K = BlockReader(
    Code("({0}) | (word_at(x, PLACE % 32) >> (part / 8 * 4 + PLACE / 32) & LOW_1) << 2").substitute(
        _PAIRS.substitute(32)
    ),
    Code(
        "((x[96 + part % 8] >> (part / 8 * 4) & 15)"
        " | (x[104 + part % 4] >> (part / 4 * 2) & 3) << 4) - 32"
    ),
)
_READ_Q4_K = BlockReader(_NIBBLES.substitute(16), _SCALE, _MINIMUM)
_READ_Q5_K = BlockReader(
    Code("({0}) | (word_at(x, 16 + 4 * i) >> part & LOW_1) << 4").substitute(
        _NIBBLES.substitute(48)
    ),
    _SCALE,
    _MINIMUM,
)
_READ_Q6_K = BlockReader(
    Code(
        "(word_at(x, part / 8 * 64 + PLACE % 64) >> (PLACE / 64 * 4) & LOW_4) | ({0}) << 4"
    ).substitute(_PAIRS.substitute(128)),
    Code("(char)x[192 + part]"),
)

TYPES = (
    BlockType.coded("Q2_K", 10, 256, 84, 2, 16, 0, _q2_k, 1, (80, 82), _READ_Q2_K),
    BlockType.coded("Q3_K", 11, 256, 110, 3, 16, 4, _q3_k, 1, (108,), _READ_Q3_K),
    BlockType.coded("Q4_K", 12, 256, 144, 4, 32, 0, _q4_k, 1, (0, 2), _READ_Q4_K),
    BlockType.coded("Q5_K", 13, 256, 176, 5, 32, 0, _q5_k, 1, (0, 2), _READ_Q5_K),
    BlockType.coded("Q6_K", 14, 256, 210, 6, 16, 32, _q6_k, 1, (208,), _READ_Q6_K),
    BlockType.coded("Q8_K", 15, 256, 292, 8, 32, SIGNED, _q8_k),
)
