"""Encodes float rows as GGUF blocks of type Q8_0.

Source: llama.cpp, ggml/src/ggml-quants.c (`quantize_row_q8_0_ref`).
"""

from __future__ import annotations

import numpy as np

from clrt.formats.gguf.block_type import Bytes, Floats

Q8_0_ELEMENTS = 32
"""Elements per block."""
# Maximum magnitude of an int8 level; -128 is not used.
_MAX_LEVEL = 127


def pack_q8_0(rows: Floats) -> Bytes:
    """Encodes rows as Q8_0 blocks: a float16 scale and 32 int8 levels each.

    Args:
        rows: Finite float32 `[rows, columns]`, with a multiple of 32 columns.

    Returns:
        uint8 `[rows, columns / 32 * 34]`.

    Numerics: the error is at most half a level, 1/254 of the largest element of the block.
    """
    count = len(rows)
    blocks = rows.reshape(count, -1, Q8_0_ELEMENTS)
    scales = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(_MAX_LEVEL)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    levels = blocks * inverse
    # Halves are rounded away from zero, as C's roundf does.
    levels = np.trunc(levels + np.copysign(np.float32(0.5), levels)).astype(np.int8)
    stored = scales.astype("<f2").view(np.uint8)
    return np.concatenate([stored, levels.view(np.uint8)], axis=2).reshape(count, -1)
