"""LoRA adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.formats.gguf.file import GgufTensor, read_gguf
from clrt.models.decoders.adapters.base import AdaptedModel
from clrt.models.decoders.adapters.lora_delta import Floats, LoraDelta, TensorDelta
from clrt.models.decoders.gguf_weights import stored_name

_DOWN, _UP = ".lora_a", ".lora_b"
_EMBEDDINGS = "token_embd.weight"


class GgufAdapter:
    """A LoRA adapter in a GGUF file (`general.type` "adapter"); implements `Adapter`.

    Attributes:
        path: The file.
        ties: Always False: llama.cpp does not apply changes of embeddings to a tied head.

    Args:
        path: The file.
        model: Base model of the adapter.

    Raises:
        ModelError: The file is missing, damaged, not an adapter, or of another architecture.
        UnsupportedError: The adapter is not a LoRA adapter, or applies to some tokens only (aLoRA).
    """

    def __init__(self, path: Path, model: AdaptedModel) -> None:
        self.path, self.ties, self._model = path, False, model
        self._file = read_gguf(path)
        values = self._file.metadata
        if values.text("general.type", "model") != "adapter":
            raise ModelError(f"{path} is a model, not an adapter; name the file of an adapter.")
        kind = values.text("adapter.type", "")
        if kind != "lora" or "adapter.alora.invocation_tokens" in values:
            kind = "alora" if kind == "lora" else kind
            raise UnsupportedError(
                f"{path} is an adapter of the type {kind[:80]!r}, but clrt supports only 'lora'; "
                "use a LoRA adapter."
            )
        architecture = values.text("general.architecture", "")
        if architecture != model.architecture:
            what = (
                f"of the architecture {model.architecture!r}" if model.architecture else "of none"
            )
            raise ModelError(
                f"{path} has the architecture {architecture[:80]!r}, and {model.path} {what}; use "
                "an adapter of this model."
            )
        self._alpha = values.number("adapter.lora.alpha", 0.0)
        if not math.isfinite(self._alpha):
            raise ModelError(
                f"The metadata 'adapter.lora.alpha' of {path} is {self._alpha} and not a finite "
                "number; convert the adapter again."
            )
        self._left = set(self._file.tensors)

    def unused(self) -> list[str]:
        """Returns the sorted names of the adapter's tensors that no call of `change` has used."""
        return sorted(self._left)

    def digest(self) -> bytes:
        """Returns a 16-byte hash of the file's content."""
        hasher = hashlib.blake2b(digest_size=16)
        for file in self._file.files:
            hasher.update(np.memmap(file, np.uint8, mode="r").data)
        return hasher.digest()

    def adds_to(self, name: str) -> bool:
        """Returns False: a GGUF adapter replaces vectors (biases, norms) but never adds to them.

        Args:
            name: Name of the base model's bias.
        """
        return False

    def changes(self, name: str) -> bool:
        """Returns whether the adapter changes a matrix of the base model (by a low-rank product).

        Args:
            name: Name of the base model's matrix.
        """
        stored = stored_name(name, self._model.names)
        return any(stored + end in self._file.tensors for end in (_DOWN, _UP))

    def change(self, name: str, shape: tuple[int, ...], index: int = 0) -> TensorDelta | None:
        """Returns the adapter's change of a tensor of the base model; None if there is no change.

        Args:
            name: Name of the base model's tensor.
            shape: Shape of the base model's matrix or vector.
            index: Index of the expert if the tensor is the matrix of an expert; else 0.

        Raises:
            ModelError: A tensor of the adapter has an unexpected shape or numbers that are not
                finite, or one of the two matrices of a product is missing.
        """
        stored = stored_name(name, self._model.names)
        if len(shape) == 1:
            tensor = self._file.tensors.get(stored)
            if tensor is None:
                return None
            value = self._read(tensor, shape, index)
            return TensorDelta(self._model.shifted(name, value, from_gguf=True))
        down, up = (self._file.tensors.get(stored + end) for end in (_DOWN, _UP))
        if down is None and up is None:
            return None
        if down is None or up is None:
            raise ModelError(
                f"{self.path} has one of '{stored}{_DOWN}' and '{stored}{_UP}' without the other; "
                "convert the adapter again."
            )
        (rows, columns), rank = shape, (up.shape or (1,))[-1]
        if name == _EMBEDDINGS:  # here lora_a has a row per token
            table = self._read(down, (rows, rank), index), self._read(up, (columns, rank), index)
            return TensorDelta(product=LoraDelta(table[0], table[1].T, self._scale(rank)))
        left = self._read(up, (rows, rank), index)
        left = self._model.reordered(name, left, from_gguf=True)
        right = self._read(down, (rank, columns), index)
        return TensorDelta(product=LoraDelta(left, right, self._scale(rank)))

    def _scale(self, rank: int) -> float:
        """Returns the factor of a low-rank product, alpha / rank; 1 if the file has no alpha."""
        return self._alpha / rank if self._alpha else 1.0

    def _read(self, tensor: GgufTensor, shape: tuple[int, ...], index: int) -> Floats:
        """Returns a tensor of the adapter as float32.

        Args:
            tensor: The tensor, of one matrix or vector, or of all experts.
            shape: Expected shape, without the axis of experts.
            index: Index of the expert to return, if the tensor holds all experts.

        Raises:
            ModelError: The shape differs, or a number is not finite.
        """
        stored_shape = tensor.shape
        of_experts = len(stored_shape) == len(shape) + 1 and index < stored_shape[0]
        if (stored_shape[1:] if of_experts else stored_shape) != shape:
            raise ModelError(
                f"Tensor '{tensor.name[:200]}' of {self.path} has the shape {list(stored_shape)}, "
                f"and {self._model.path} needs {list(shape)}; the adapter is for another model."
            )
        self._left.discard(tensor.name)
        array = tensor.type.dequantise(tensor.raw[index] if of_experts else tensor.raw)
        if not np.isfinite(array).all():
            raise ModelError(
                f"Tensor '{tensor.name[:200]}' of {self.path} has non-finite numbers; convert the "
                "adapter again."
            )
        return array
