"""The interface by which decoder graphs read weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from clrt.ir.op import Array


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix of quantised rows in GGUF blocks.

    Attributes:
        type: Name of the block type (`clrt.formats.gguf.block_types`).
        raw: uint8 `[rows, bytes of a row]`.
    """

    type: str
    raw: Array


class WeightSource(Protocol):
    """The tensors of a decoder under llama.cpp's names: `blk.3.attn_q.weight`.

    Matrices are `[outputs, inputs]`. Q, K and V stored as one tensor are `attn_qkv`, gate and up
    projection `ffn_gate_up`.
    """

    def __contains__(self, name: str) -> bool: ...

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        """Returns a tensor as float32, float16 or bfloat16; a view of the file if possible.

        Raises:
            ModelError: It is missing, or has another shape.
        """

    def matrix(self, name: str, rows: int, columns: int) -> Array | QuantizedMatrix:
        """Returns a matrix as `load` does, or quantised as it is stored.

        Raises:
            ModelError: As `load`.
        """
