"""The interface by which decoder graphs read weights."""

from __future__ import annotations

from typing import Protocol

from clrt.ir.op import Array
from clrt.util.fast_dataclass import dataclass


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

    Matrices are `[outputs, inputs]`. If Q, K and V are stored as one tensor, it is named
    `attn_qkv`; gate and up projection stored as one are `ffn_gate_up`.
    """

    def __contains__(self, name: str) -> bool: ...

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        """Returns a tensor as float32, float16 or bfloat16; a view of the file if possible.

        Raises:
            ModelError: The tensor is missing, or has another shape.
        """

    def matrix(self, name: str, rows: int, columns: int) -> Array | QuantizedMatrix:
        """Returns a matrix as stored: quantised, or as float32, float16 or bfloat16.

        Raises:
            ModelError: The matrix is missing, or has another shape.
        """
