"""MurmurHash3: 32-bit hashes, on the host."""

from __future__ import annotations

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass

_BITS = 0xFFFFFFFF


def _rotate_left(word: int, bits: int) -> int:
    """Rotates a 32-bit number left by `bits` bits."""
    return (word << bits | word >> (32 - bits)) & _BITS


def _scramble(word: int) -> int:
    """Scrambles 32 bits (`word`) of the hashed bytes, as MurmurHash3_x86_32 does."""
    return _rotate_left(word * 0xCC9E2D51 & _BITS, 15) * 0x1B873593 & _BITS


def _hash(data: bytes, seed: int) -> int:
    """Returns the 32-bit hash of `data` by MurmurHash3_x86_32, with initial state `seed`."""
    whole = len(data) // 4 * 4
    state = seed & _BITS
    for word in np.frombuffer(data[:whole], "<u4").tolist():
        state = _rotate_left(state ^ _scramble(word), 13) * 5 + 0xE6546B64 & _BITS
    state ^= _scramble(int.from_bytes(data[whole:], "little")) ^ len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & _BITS
    return state ^ state >> 16


@register
@dataclass(frozen=True)
class MurmurHash3(Op):
    """Hashes the bytes of each element; strings are hashed as UTF-8.

    Attributes:
        positive: 1 for hashes in uint32, 0 for int32.
        seed: Initial state of the hash.

    Source: com.microsoft MurmurHash3 1; MurmurHash3_x86_32 of Austin Appleby.
    """

    positive: int = 1
    seed: int = 0

    domain = "com.microsoft"
    supported_storages = None
    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        return [TensorType(DType.UINT32 if self.positive else DType.INT32, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        keys = [str(v).encode() if x.dtype.kind == "U" else v.tobytes() for v in x.flat]
        hashes = np.array([_hash(key, self.seed) for key in keys], np.uint32).reshape(x.shape)
        return (hashes if self.positive else hashes.view(np.int32),)
