"""The tensors of a Hugging Face folder under llama.cpp's names."""

from __future__ import annotations

import numpy as np

from clrt.errors import ModelError
from clrt.ir.op import Array
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.decoder_family import DecoderFamily
from clrt.models.huggingface.checkpoint import Checkpoint

# Prefixes of tensor names: a class that contains the decoder adds the name of its attribute.
PREFIXES = (
    "",
    "model.",
    "transformer.",
    "language_model.",
    "language_model.model.",
    "model.language_model.",
    "model.decoder.",
    "decoder.",
    "gpt_neox.",
)
_HEAD, _EMBEDDINGS, _QKV = "output", "token_embd", "attn_qkv"


class HuggingFaceWeights:
    """The tensors of a Hugging Face folder under llama.cpp's names, as a WeightSource.

    Args:
        checkpoint: The folder's tensors under their own names.
        family: Names and storage of tensors in this family of decoders.
        decoder: Configuration of the decoder.
        tied: Whether the embeddings are used as head, even if the checkpoint has a separate head.

    Raises:
        ModelError: The checkpoint has no embeddings.
    """

    def __init__(
        self, checkpoint: Checkpoint, family: DecoderFamily, decoder: DecoderConfig, *, tied: bool
    ) -> None:
        self._checkpoint, self._family, self._decoder = checkpoint, family, decoder
        self._hidden = {_HEAD} if tied else set()
        tables = paths_of(family, _EMBEDDINGS)
        prefixes = [p for p in PREFIXES for t in tables if f"{p}{t}.weight" in checkpoint]
        if not prefixes:
            raise ModelError(
                f"{checkpoint.source} has no tensor '{tables[0]}.weight', with or without "
                f"{', '.join(p for p in PREFIXES if p)} before it; checkpoint and config.json "
                "belong to different models, download the folder again."
            )
        self._prefix = prefixes[0]

    def __contains__(self, name: str) -> bool:
        return any(stored in self._checkpoint for stored in self._stored(name, 0))

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        """Returns a tensor in the dtype of the file; float64 becomes float32.

        Args:
            name: llama.cpp's name of the tensor.
            shape: Expected shape.

        Raises:
            ModelError: The tensor is missing, or has another shape.
        """
        array = self._load(name, shape)
        return array.astype(np.float32) if array.dtype == np.float64 else array

    def matrix(self, name: str, rows: int, columns: int) -> Array:
        """Returns a matrix `[rows, columns]` in the dtype of the file; float64 becomes float32.

        Args:
            name: llama.cpp's name of the matrix.
            rows: Expected number of rows.
            columns: Expected number of columns.

        Raises:
            ModelError: The matrix is missing, or has another shape.
        """
        return self.load(name, (rows, columns))

    def _load(self, name: str, shape: tuple[int, ...]) -> Array:
        """Reads a tensor and converts it to the layout that decoder graphs expect.

        Tensors of single experts are stacked, transposed matrices are transposed back, and rows are
        brought into the order of llama.cpp.

        Args:
            name: llama.cpp's name of the tensor.
            shape: Expected shape.
        """
        family = self._family
        key, _ = split_name(name)
        if key.endswith("_exps") and family.experts != "alone":
            return self._experts(name, shape)
        if any(pattern.count("{}") > 1 for pattern in paths_of(family, key)):
            return np.stack([self._one(name, shape[1:], index) for index in range(shape[0])])
        if family.transposed and len(shape) == 2 and key.startswith("blk."):
            return self._one(name, shape[::-1]).T
        if key == "position_embd" and family.first_place:
            return self._one(name, (shape[0] + family.first_place, shape[1]))[family.first_place :]
        return in_order(self._one(name, shape), key, family, self._decoder)

    def _experts(self, name: str, shape: tuple[int, ...]) -> Array:
        """Returns a projection of all experts, if the checkpoint has one tensor for all experts.

        Such a tensor holds both the gate and the up projections; the down projections have their
        own.

        Args:
            name: llama.cpp's name of the weights or biases of the projection.
            shape: Expected shape: (experts, outputs, inputs), or (experts, outputs) for biases.
        """
        turns = self._family.experts == "transposed"
        part = next((k for k in (0, 1) if ("ffn_gate_exps", "ffn_up_exps")[k] in name), None)
        count, outputs, *inputs = shape
        outputs *= 1 if part is None else 2
        if turns:
            stored = self._one(name, (count, *inputs, outputs))
            stored = stored.swapaxes(1, -1)
        else:
            stored = self._one(name, (count, outputs, *inputs))
        if part is None:
            return np.ascontiguousarray(stored)
        half = outputs // 2
        rows = slice(part, None, 2) if turns else slice(part * half, (part + 1) * half)
        return np.ascontiguousarray(stored[:, rows])

    def _one(self, name: str, shape: tuple[int, ...], index: int = 0) -> Array:
        """Reads one tensor as stored, by the first of its possible names in the checkpoint.

        Args:
            name: llama.cpp's name of the tensor.
            shape: Shape in the checkpoint.
            index: Index of the expert or head, if each has a tensor of its own; else unused.
        """
        stored = self._stored(name, index) or [name]
        present = [candidate for candidate in stored if candidate in self._checkpoint]
        return self._checkpoint.stored((present or stored)[0], shape)

    def _stored(self, name: str, index: int) -> list[str]:
        """Returns the names that a tensor may have in the checkpoint; [] for a tied head.

        Args:
            name: llama.cpp's name of the tensor.
            index: Index of the expert or head, if each has a tensor of its own; else unused.
        """
        key, layer = split_name(name)
        if key in self._hidden:
            return []
        kind = name.rpartition(".")[2]
        paths = [pattern.format(layer, index) for pattern in paths_of(self._family, key)]
        # The head is not part of the decoder module, so its name lacks the decoder's prefix.
        prefixes = (self._prefix,) if key != _HEAD else ("", "language_model.", self._prefix)
        # A parameter outside submodules is named `<path>_bias` instead of `<path>.bias`, and a
        # weight just `<path>`.
        ends = (f".{kind}", "" if kind == "weight" else f"_{kind}")
        return [f"{prefix}{path}{end}" for end in ends for path in paths for prefix in prefixes]


def in_order(array: Array, key: str, family: DecoderFamily, decoder: DecoderConfig) -> Array:
    """Reorders the rows of a joint QKV tensor to all heads of Q, then of K, then of V.

    Args:
        array: The tensor as stored; returned unchanged if it is another tensor.
        key: llama.cpp's name of the tensor without last component, `{}` for the layer's index.
        family: The family; if it does not group rows by KV head, `array` is returned unchanged.
        decoder: Configuration of the decoder: numbers of heads.
    """
    if not family.grouped or not key.endswith(_QKV):
        return array
    group, rest = decoder.heads // decoder.kv_heads, array.shape[1:]
    groups = array.reshape(decoder.kv_heads, group + 2, decoder.head_size, *rest)
    parts = (groups[:, :group], groups[:, group], groups[:, group + 1])
    return np.concatenate([part.reshape(-1, *rest) for part in parts])


def split_name(name: str) -> tuple[str, str]:
    """Splits llama.cpp's name of a tensor into a path common to all layers, and the layer's index.

    "blk.3.attn_q.weight" becomes ("blk.{}.attn_q", "3"), "output.weight" becomes ("output", "").
    The last component of the name is dropped.
    """
    path = name.rpartition(".")[0]
    parts = path.split(".")
    if "blk" not in parts:
        return path, ""
    at = parts.index("blk") + 1
    return ".".join([*parts[:at], "{}", *parts[at + 1 :]]), parts[at]


def paths_of(family: DecoderFamily, key: str) -> tuple[str, ...]:
    """Returns the names that a tensor may have in checkpoints of a family.

    Args:
        key: llama.cpp's name without last component, `{}` for the layer's index: "blk.{}.attn_q".

    Returns:
        Names without last component, `{}` for the indices of layer and expert; () if the family has
        no such tensor.
    """
    names = family.names.get(key, ())
    return (names,) if isinstance(names, str) else names
