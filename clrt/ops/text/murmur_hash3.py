"""MurmurHash3: hashes of 32 bits, by the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.registry import register

_BITS = 0xFFFFFFFF


def _turned(word: int, bits: int) -> int:
    """A word of 32 bits turned left."""
    return (word << bits | word >> (32 - bits)) & _BITS


def _mixed(word: int) -> int:
    return _turned(word * 0xCC9E2D51 & _BITS, 15) * 0x1B873593 & _BITS


def _hashed(data: bytes, seed: int) -> int:
    """MurmurHash3_x86_32: words of four bytes, the low one first, then what is left of them."""
    whole = len(data) // 4 * 4
    state = seed & _BITS
    for word in np.frombuffer(data[:whole], "<u4").tolist():
        state = _turned(state ^ _mixed(word), 13) * 5 + 0xE6546B64 & _BITS
    state ^= _mixed(int.from_bytes(data[whole:], "little")) ^ len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & _BITS
    return state ^ state >> 16


@register
@dataclass(frozen=True)
class MurmurHash3(Op):
    """A hash of the bytes of each element, of a text those of UTF-8; uint32 or int32.

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
        found = np.array([_hashed(key, self.seed) for key in keys], np.uint32).reshape(x.shape)
        return (found if self.positive else found.view(np.int32),)
