"""Fields of encoded GGUF blocks: the helpers of decoders."""

from __future__ import annotations

import numpy as np

from clrt.formats.gguf.block_type import Bytes, Floats


def split(blocks: Bytes, *sizes: int) -> list[Bytes]:
    """Splits encoded blocks into fields.

    Args:
        blocks: uint8 [blocks, bytes per block].
        sizes: Bytes of each field except the last, which has the remaining bytes.
    """
    return np.split(blocks, np.cumsum(sizes), axis=1)


def halves(field: Bytes) -> Floats:
    return field.view("<f2").astype(np.float32)


def unpack_bits(field: Bytes, bits: int, run: int) -> Bytes:
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


def joined(low: Bytes, high: Bytes, bits: int) -> Bytes:
    """Joins elements stored in two fields: `low` has the low `bits` bits, `high` the other bits."""
    return np.bitwise_or(low, np.left_shift(high, np.uint8(bits)))
