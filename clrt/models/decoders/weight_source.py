"""Where a decoder's weights come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from clrt.ir.op import Array


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix whose rows are blocks of few bits.

    Attributes:
        type: Name of the type of its blocks (`clrt.formats.gguf.block_types`).
        raw: uint8 `[rows, bytes of a row]`.
    """

    type: str
    raw: Array


class WeightSource(Protocol):
    """The tensors of a decoder under llama.cpp's names: `blk.3.attn_q.weight`.

    Matrices are `[outputs, inputs]`. Where Q, K and V, or gate and up projection, lie as one it is
    `attn_qkv`, and `ffn_gate_up`.
    """

    def __contains__(self, name: str) -> bool: ...

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        """A tensor as float32, float16 or bfloat16, a view of the file where that is possible.

        Raises:
            ModelError: It is missing, or has another shape.
        """

    def matrix(self, name: str, rows: int, columns: int) -> Array | QuantizedMatrix:
        """The same of a matrix, which may stay quantised.

        Raises:
            ModelError: As `load`.
        """
