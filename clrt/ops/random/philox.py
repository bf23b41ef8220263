"""Random numbers from a counter and a key: Philox4x32-10, as in `common/philox.clh`.

An element of a random tensor depends on its place and on the key of its node only. So an op that
draws is a function of its attributes like any other: it is the same on every device and in every
run, it may be folded, and two nodes with one seed draw the same numbers.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from clrt.ir.op import Array
from clrt.ops.base import OnnxNode, Op, Types

FLOAT_BITS = 24
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_NO_SEED = 1 << 63


@dataclass(frozen=True)
class RandomOp(Op):
    """Base of the ops that draw random numbers.

    Attributes:
        key: Of the generator: `seed`, or made of the node's name.
    """

    key: int = 0

    non_attribute_fields = frozenset({"key"})

    def to_onnx(self) -> dict[str, Any]:
        """The seed that the key was made of, and none if it was made of the node's name."""
        if self.key >= _NO_SEED or not self.key:
            return super().to_onnx()
        (seed,) = struct.unpack("<f", struct.pack("<I", self.key & _MASK))
        return {**super().to_onnx(), "seed": seed}

    def is_random(self, inputs: Types) -> bool:
        return True


def key_of(node: OnnxNode) -> int:
    """The 64-bit key of a node: its `seed`, or a hash of its name where it has none."""
    seed = node.attrs.get("seed")
    if seed is None:
        return _NO_SEED | crc32(node.name.encode())
    if isinstance(seed, float):
        return int.from_bytes(struct.pack("<f", seed), "little")
    return int(seed) & (1 << 64) - 1


def key_args(key: int) -> dict[str, int]:
    """The key as two kernel arguments."""
    return {"key_low": key & _MASK, "key_high": key >> 32 & _MASK}


def words(key: int, count: int) -> Array:
    """The first `count` words of a key's sequence, uint32."""
    return _blocks(key, np.arange(-(-count // 4), dtype=np.uint64)).reshape(-1)[:count]


def uniform_at(key: int, place: int) -> float:
    """The number in [0, 1) at a place of a key's sequence."""
    word = _blocks(key, np.array([place // 4], np.uint64))[0, place % 4]
    return float(word >> np.uint32(32 - FLOAT_BITS)) * 2.0**-FLOAT_BITS


def _blocks(key: int, counters: Array) -> Array:
    """Four words for each counter, uint32."""
    c = [counters, *(np.zeros_like(counters) for _ in range(3))]
    low, high = key & _MASK, key >> 32 & _MASK
    for _ in range(10):
        a, b = _MULTIPLIERS[0] * c[0], _MULTIPLIERS[1] * c[2]
        shift, mask = np.uint64(32), np.uint64(_MASK)
        c = [
            (b >> shift) ^ c[1] ^ np.uint64(low),
            b & mask,
            (a >> shift) ^ c[3] ^ np.uint64(high),
            a & mask,
        ]
        low, high = low + _WEYL[0] & _MASK, high + _WEYL[1] & _MASK
    return np.stack(c, axis=1).astype(np.uint32)


def uniforms(key: int, count: int, bits: int = FLOAT_BITS) -> Array:
    """Numbers in [0, 1), float64: of one word each, or of two where `bits` is 53."""
    if bits <= 32:
        return np.asarray((words(key, count) >> np.uint32(32 - bits)) * 2.0**-bits)
    pairs = words(key, 2 * count).astype(np.uint64).reshape(-1, 2)
    return np.asarray(((pairs[:, 0] << np.uint64(21)) | (pairs[:, 1] >> np.uint64(11))) * 2.0**-53)
