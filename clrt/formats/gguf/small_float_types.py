"""GGUF block types of ternary digits (TQ1_0, TQ2_0) and of 4-bit floats (MXFP4, NVFP4).

Source: llama.cpp, ggml/src/ggml-common.h (the structs) and ggml-quants.c (`dequantize_row_*`).
"""

from __future__ import annotations

import numpy as np

from clrt.formats.gguf.block_fields import halves, split, unpack_bits
from clrt.formats.gguf.block_type import SIGNED_FIVE_BITS, BlockType, Bytes, Floats, Unpacked

# Levels of E2M1 codes: twice their values.
_E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_E2M1_LEVELS = np.array(_E2M1_VALUES, np.int16).astype(np.uint8) + np.uint8(SIGNED_FIVE_BITS)


def _tq1_0(blocks: Bytes) -> Unpacked:
    """Decodes TQ1_0 blocks, whose elements are base-3 digits.

    A byte holds five digits, as the fraction byte / 256 in base 3; the last four bytes of levels
    hold four digits each.
    """
    powers = np.array([1, 3, 9, 27, 81], np.uint8)
    first, second, third, d = split(blocks, 32, 16, 4)
    fields = ((first, 5), (second, 5), (third, 4))
    runs = [(f[:, None] * powers[:n, None]).reshape(len(f), -1) for f, n in fields]
    digits = np.hstack(runs).astype(np.uint16) * np.uint16(3) >> 8
    return Unpacked(digits.astype(np.uint8), halves(d))


def _tq2_0(blocks: Bytes) -> Unpacked:
    low, d = split(blocks, 64)
    return Unpacked(unpack_bits(low, 2, 32), halves(d))


def _e8m0() -> Floats:
    """Returns half the value of each E8M0 byte (a power of two), float32 [256].

    Half, because levels of MXFP4 are doubled to be integers.
    """
    return np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


def _ue4m3() -> Floats:
    """Returns half the value of each unsigned E4M3 byte, float32 [256].

    Half, because levels of NVFP4 are doubled to be integers. The top bit is ignored, and 0x7F
    means 0.
    """
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    normal = np.ldexp((8 + fraction) / 8, exponent - 8)
    values = np.where(exponent == 0, fraction * 2.0**-10, normal)
    return np.where(code == 0x7F, 0, values).astype(np.float32)


_E8M0, _UE4M3 = _e8m0(), _ue4m3()


def _mxfp4(blocks: Bytes) -> Unpacked:
    exponent, low = split(blocks, 1)
    return Unpacked(_E2M1_LEVELS[unpack_bits(low, 4, 16)], _E8M0[exponent])


def _nvfp4(blocks: Bytes) -> Unpacked:
    scales, low = split(blocks, 4)
    return Unpacked(_E2M1_LEVELS[unpack_bits(low, 4, 8)], _UE4M3[scales])


TYPES = (
    BlockType.coded("TQ1_0", 34, 256, 54, 2, 32, 1, _tq1_0, 2, (52,)),
    BlockType.coded("TQ2_0", 35, 256, 66, 2, 32, 1, _tq2_0, 2, (64,)),
    BlockType.coded("MXFP4", 39, 32, 17, 5, 32, SIGNED_FIVE_BITS, _mxfp4),
    BlockType.coded("NVFP4", 40, 64, 36, 5, 16, SIGNED_FIVE_BITS, _nvfp4, 2),
)
