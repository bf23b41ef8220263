"""Weights of few bits, of which plans need sizes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.importer.language.source import QuantisedRows
from clrt.kernels.gguf_blocks import BLOCK_TYPES_BY_NAME

Array = NDArray[Any]


class FewBits:
    """A decoder's weights in the types of llama.cpp's Q4_K_M; all are 0, and take no memory.

    Source: llama.cpp, src/llama-quant.cpp (`llama_tensor_get_type`).
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._layers = int(config["num_hidden_layers"])

    def __contains__(self, name: str) -> bool:
        joined = ("attn_qkv", "ffn_gate_up", "ffn_gate_inp", "token_embd_norm", "attn_sinks")
        return name.endswith(".weight") and name != "output.weight" and not _has(name, joined)

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        return np.zeros(shape, np.float32)

    def matrix(self, name: str, rows: int, columns: int) -> Array | QuantisedRows:
        type_ = "Q6_K" if self._is_wide(name) else "Q4_K"
        row_bytes = BLOCK_TYPES_BY_NAME[type_].row_bytes(columns)
        return QuantisedRows(type_, np.zeros((rows, row_bytes), np.uint8))

    def _is_wide(self, name: str) -> bool:
        """The table, and V and the last matrices of the first, the last and each third layer."""
        if not _has(name, ("attn_v", "ffn_down")):
            return name == "token_embd.weight"
        layer, eighth = int(name.split(".")[1]), self._layers // 8
        return not eighth <= layer < 7 * self._layers // 8 or (layer - eighth) % 3 == 2


def _has(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts)
