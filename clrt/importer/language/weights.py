"""The tensors of a Hugging Face folder under llama.cpp's names."""

from __future__ import annotations

import numpy as np

from clrt.errors import ModelError
from clrt.importer.huggingface.checkpoint import Checkpoint
from clrt.importer.language.decoder import Decoder
from clrt.importer.language.families import DecoderFamily
from clrt.ir.op import Array

# What may precede the names of tensors: classes name the decoder within them.
_PREFIXES = (
    "",
    "model.",
    "transformer.",
    "language_model.",
    "language_model.model.",
    "model.language_model.",
    "gpt_neox.",
)
_HEAD, _EMBEDDINGS, _QKV = "output", "token_embd", "attn_qkv"


class HuggingFaceWeights:
    """The tensors of a folder under llama.cpp's names.

    Args:
        tied: The embeddings are the head, whatever the folder has.

    Raises:
        ModelError: No tensor has the name of the embeddings.
    """

    def __init__(
        self, checkpoint: Checkpoint, family: DecoderFamily, decoder: Decoder, *, tied: bool
    ) -> None:
        self._checkpoint, self._family, self._decoder = checkpoint, family, decoder
        self._hidden = {_HEAD} if tied else set()
        (embeddings,) = _alternatives(family, _EMBEDDINGS)
        found = [p for p in _PREFIXES if f"{p}{embeddings}.weight" in checkpoint]
        if not found:
            raise ModelError(
                f"{checkpoint.source} has no tensor '{embeddings}.weight', with or without "
                f"{', '.join(p for p in _PREFIXES if p)} before it; the checkpoint is of another "
                "model than config.json describes, download the folder again."
            )
        self._prefix = found[0]

    def __contains__(self, name: str) -> bool:
        return any(stored in self._checkpoint for stored in self._stored(name, 0))

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        """A tensor in the dtype of the file; float64 becomes float32.

        Raises:
            ModelError: It is missing, or has another shape.
        """
        array = self._load(name, shape)
        return array.astype(np.float32) if array.dtype == np.float64 else array

    def matrix(self, name: str, rows: int, columns: int) -> Array:
        """The same of a matrix.

        Raises:
            ModelError: As `load`.
        """
        return self.load(name, (rows, columns))

    def _load(self, name: str, shape: tuple[int, ...]) -> Array:
        key, _ = _split(name)
        if any(pattern.count("{}") > 1 for pattern in _alternatives(self._family, key)):
            parts = [self._one(name, shape[1:], index) for index in range(shape[0])]
            return np.stack(parts)
        if self._family.transposed and len(shape) == 2 and key.startswith("blk."):
            return self._one(name, shape[::-1]).T
        array = self._one(name, shape)
        return self._ungrouped(array) if self._family.grouped and key.endswith(_QKV) else array

    def _one(self, name: str, shape: tuple[int, ...], index: int = 0) -> Array:
        stored = self._stored(name, index) or [name]
        found = [candidate for candidate in stored if candidate in self._checkpoint]
        return self._checkpoint.stored((found or stored)[0], shape)

    def _ungrouped(self, array: Array) -> Array:
        """Rows of all heads of Q, then K, then V, from rows by head of K."""
        decoder = self._decoder
        group = decoder.heads // decoder.kv_heads
        groups = array.reshape(decoder.kv_heads, group + 2, decoder.head_size, *array.shape[1:])
        parts = (groups[:, :group], groups[:, group], groups[:, group + 1])
        return np.concatenate([part.reshape(-1, *array.shape[1:]) for part in parts])

    def _stored(self, name: str, index: int) -> list[str]:
        """Names that a tensor may have in the file.

        Args:
            index: Of what is stacked.
        """
        key, layer = _split(name)
        if key in self._hidden:
            return []
        kind = name.rpartition(".")[2]
        paths = [pattern.format(layer, index) for pattern in _alternatives(self._family, key)]
        # A class with a head has it beside the decoder.
        prefixes = (self._prefix,) if key != _HEAD else ("", "language_model.", self._prefix)
        return [f"{prefix}{path}.{kind}" for path in paths for prefix in prefixes]


def _split(name: str) -> tuple[str, str]:
    """What a tensor is in every layer, and the number of the layer."""
    path = name.rpartition(".")[0]
    parts = path.split(".")
    if parts[0] != "blk":
        return path, ""
    return ".".join(["blk", "{}", *parts[2:]]), parts[1]


def _alternatives(family: DecoderFamily, key: str) -> tuple[str, ...]:
    found = family.names.get(key, ())
    return (found,) if isinstance(found, str) else found
