"""Packs floats into blocks of GGUF.

Source: llama.cpp, ggml/src/ggml-quants.c (`quantize_row_q8_0_ref`).
"""

from __future__ import annotations

import numpy as np

from clrt.formats.gguf.decode import Bytes, Floats

#: Elements of a block.
Q8_0_ELEMENTS = 32
_Q8_0_MOST = 127


def pack_q8_0(rows: Floats) -> Bytes:
    """Rows as blocks of Q8_0: a scale in float16, and 32 signed bytes.

    Args:
        rows: Finite, float32 `[rows, columns]`; the columns are a multiple of 32.

    Returns:
        `[rows, columns / 32 * 34]`.

    Numerics: an element is off by half a level at most, 1/254 of the largest one of its block.
    """
    count = len(rows)
    blocks = rows.reshape(count, -1, Q8_0_ELEMENTS)
    scales = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(_Q8_0_MOST)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    levels = blocks * inverse
    # Halves are rounded away from zero, as C's roundf does.
    levels = np.trunc(levels + np.copysign(np.float32(0.5), levels)).astype(np.int8)
    stored = scales.astype("<f2").view(np.uint8)
    return np.concatenate([stored, levels.view(np.uint8)], axis=2).reshape(count, -1)
