"""GGUF block types with a float16 scale per block: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q1_0.

Source: llama.cpp, ggml/src/ggml-common.h (the structs) and ggml-quants.c (`dequantize_row_*`).
"""

from __future__ import annotations

import numpy as np

from clrt.formats.gguf.block_fields import halves, joined, split, unpack_bits
from clrt.formats.gguf.block_type import SIGNED, BlockReader, BlockType, Bytes, Unpacked
from clrt.ir.cl_code import Code

# OpenCL expression: reads levels 4 i to 4 i + 3 of 4 bits each, which start at byte {0}. The high
# bits of a byte belong to the second half of the block.
_NIBBLES = Code("word_at(x, {0} + i % 4 * 4) >> (i / 4 * 4) & LOW_4")
# OpenCL expression: reads levels 4 i to 4 i + 3 of 5 bits each. The four bytes from byte {0} on
# hold the fifth bits; the low 4 bits follow as in _NIBBLES.
_FIVES = Code(
    "(word_at(x, {0} + 4 + i % 4 * 4) >> (i / 4 * 4) & LOW_4)"
    " | spread_4(word_at(x, {0}) >> 4 * i) << 4"
)
_BYTES = Code("word_at(x, 2 + 4 * i) ^ 0x80808080u")
# Factor of minima: files store numbers to add, whereas readers subtract minima.
_ADDED = Code("-1")


def _q1_0(blocks: Bytes) -> Unpacked:
    d, bits = split(blocks, 2)
    return Unpacked(unpack_bits(bits, 1, 1) << np.uint8(1), halves(d))


def _q4_0(blocks: Bytes) -> Unpacked:
    d, low = split(blocks, 2)
    return Unpacked(unpack_bits(low, 4, 16), halves(d))


def _q4_1(blocks: Bytes) -> Unpacked:
    d, m, low = split(blocks, 2, 2)
    return Unpacked(unpack_bits(low, 4, 16), halves(d), -halves(m))


def _q5_0(blocks: Bytes) -> Unpacked:
    d, high, low = split(blocks, 2, 4)
    return Unpacked(joined(unpack_bits(low, 4, 16), unpack_bits(high, 1, 1), 4), halves(d))


def _q5_1(blocks: Bytes) -> Unpacked:
    d, m, rest = split(blocks, 2, 2)
    high, low = split(rest, 4)
    return Unpacked(
        joined(unpack_bits(low, 4, 16), unpack_bits(high, 1, 1), 4), halves(d), -halves(m)
    )


def _q8_0(blocks: Bytes) -> Unpacked:
    d, signed = split(blocks, 2)
    return Unpacked(signed ^ np.uint8(SIGNED), halves(d))


def _q8_1(blocks: Bytes) -> Unpacked:
    d, _sum, signed = split(blocks, 2, 2)
    return Unpacked(signed ^ np.uint8(SIGNED), halves(d))


_READ_Q4_0 = BlockReader(_NIBBLES.substitute(2))
_READ_Q4_1 = BlockReader(_NIBBLES.substitute(4), minimum=_ADDED)
_READ_Q5_0 = BlockReader(_FIVES.substitute(2))
_READ_Q5_1 = BlockReader(_FIVES.substitute(4), minimum=_ADDED)
_READ_Q8_0 = BlockReader(_BYTES)
TYPES = (
    BlockType.coded("Q4_0", 2, 32, 18, 4, 32, 8, _q4_0, 2, (0,), _READ_Q4_0, restorable=True),
    BlockType.coded("Q4_1", 3, 32, 20, 4, 32, 0, _q4_1, 2, (0, 2), _READ_Q4_1, restorable=True),
    BlockType.coded("Q5_0", 6, 32, 22, 5, 32, 16, _q5_0, 2, (0,), _READ_Q5_0),
    BlockType.coded("Q5_1", 7, 32, 24, 5, 32, 0, _q5_1, 2, (0, 2), _READ_Q5_1),
    BlockType.coded("Q8_0", 8, 32, 34, 8, 32, SIGNED, _q8_0, 2, (0,), _READ_Q8_0, restorable=True),
    BlockType.coded("Q8_1", 9, 32, 36, 8, 32, SIGNED, _q8_1, 2, (0,)),
    BlockType.coded("Q1_0", 41, 128, 18, 2, 32, 1, _q1_0, 2, (0,)),
)
