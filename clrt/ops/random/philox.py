"""Counter-based random numbers: Philox4x32-10, as in `common/philox.clh`.

An element of a random tensor depends only on its index and on the node's key. So a random op is a
pure function of its attributes: it gives the same result on every device and in every run, it can
be folded, and two nodes with equal seeds draw equal numbers.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import numpy as np

from clrt.ir.op import Array
from clrt.ops.base import OnnxNode, Op, Types
from clrt.ops.traits import OnnxTraits
from clrt.util.fast_dataclass import dataclass

# Random bits of a float32 in [0, 1): its precision.
FLOAT_BITS = 24
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_NO_SEED = 1 << 63


@dataclass(frozen=True)
class RandomOp(Op):
    """Base of ops that draw random numbers.

    Attributes:
        key: 64-bit key of the Philox generator: the bits of the attribute `seed`, or a hash of the
            node's name.
    """

    key: int = 0

    onnx_traits = OnnxTraits(non_attribute_fields=frozenset({"key"}))

    def to_onnx(self) -> dict[str, Any]:
        """Returns the ONNX attributes, with a float `seed` if the key was made from a seed.

        A key of 0, or one made from the node's name, gives no `seed`.
        """
        if self.key >= _NO_SEED or not self.key:
            return super().to_onnx()
        (seed,) = struct.unpack("<f", struct.pack("<I", self.key & _MASK))
        return {**super().to_onnx(), "seed": seed}

    def is_random(self, inputs: Types) -> bool:
        return True


def key_of(node: OnnxNode) -> int:
    """Returns the 64-bit random key of an ONNX node.

    The key is the `seed` attribute as bits, or a hash of the node's name if there is no seed.
    """
    seed = node.attrs.get("seed")
    if seed is None:
        return _NO_SEED | crc32(node.name.encode())
    if isinstance(seed, float):
        return int.from_bytes(struct.pack("<f", seed), "little")
    return int(seed) & (1 << 64) - 1


def key_args(key: int) -> dict[str, int]:
    """Returns the kernel arguments of a random key, by name.

    The arguments are `key_low` and `key_high`, the lower and upper 32 bits.
    """
    return {"key_low": key & _MASK, "key_high": key >> 32 & _MASK}


def words(key: int, count: int) -> Array:
    """Returns the first `count` numbers of the random sequence of a key, uint32 [count]."""
    return _blocks(key, np.arange(-(-count // 4), dtype=np.uint64)).reshape(-1)[:count]


def uniform_at(key: int, place: int) -> float:
    """Returns one uniform number in [0, 1) of a random sequence.

    Args:
        key: 64-bit key of the random sequence.
        place: Index into the sequence, from 0.
    """
    word = _blocks(key, np.array([place // 4], np.uint64))[0, place % 4]
    return float(word >> np.uint32(32 - FLOAT_BITS)) * 2.0**-FLOAT_BITS


def _blocks(key: int, counters: Array) -> Array:
    """Computes Philox-4x32-10: returns four random numbers per counter, uint32 [len(counters), 4].

    Args:
        key: 64-bit key of the random sequence.
        counters: Block numbers, uint64; block c holds elements 4 c to 4 c + 3 of the sequence.
    """
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
    """Returns uniform numbers in [0, 1), float64 [count].

    Args:
        key: 64-bit key of the random sequence.
        count: Number of results.
        bits: Random bits per number. Up to 32, each number uses one uint32 of the sequence; above
            32, a number has 53 bits from two uint32, whatever the value.
    """
    if bits <= 32:
        return np.asarray((words(key, count) >> np.uint32(32 - bits)) * 2.0**-bits)
    pairs = words(key, 2 * count).astype(np.uint64).reshape(-1, 2)
    return np.asarray(((pairs[:, 0] << np.uint64(21)) | (pairs[:, 1] >> np.uint64(11))) * 2.0**-53)
