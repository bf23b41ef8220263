"""The base model of adapters: names and row order of its tensors in other formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

import numpy as np

from clrt.formats.gguf.file import GgufFile
from clrt.ir.op import Array
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.decoder_family import DecoderFamily
from clrt.models.decoders.families import ARCHITECTURES, FAMILIES
from clrt.models.decoders.weights import split_name
from clrt.util.fast_dataclass import dataclass

_EXPERTS = "blk.{}.ffn_gate_exps"


@dataclass(frozen=True)
class AdaptedModel:
    """The base model that adapters are merged into.

    Attributes:
        path: Folder or file of the model, for messages.
        decoder: Configuration of the model.
        family: How the model's tensors are stored in Hugging Face folders.
        architecture: Name of the model's architecture in llama.cpp; "" if there is none.
        is_gguf: Whether the model's weights come from a GGUF file.
        names: GGUF's name by clrt's name, for tensors of a layer whose two names differ:
            `{"ffn_gate_up": "ffn_up"}`.
    """

    path: Path
    decoder: DecoderConfig
    family: DecoderFamily
    architecture: str
    is_gguf: bool
    names: Mapping[str, str] = field(default_factory=dict)

    def reordered(self, name: str, array: Array, *, from_gguf: bool) -> Array:
        """Returns an adapter's tensor with its rows in the order of the base model's tensor.

        Only rows of Q and K can be in another order: llama.cpp's converter permutes them for
        interleaved RoPE. Other tensors are returned unchanged.

        Args:
            name: Name of the base model's tensor.
            array: The adapter's tensor, `[rows, …]`.
            from_gguf: Whether the adapter is a GGUF file.
        """
        part = split_name(name)[0].rpartition(".")[2]
        if part not in ("attn_q", "attn_k") or from_gguf == self.is_gguf or not self._permutes:
            return array
        heads = self.decoder.heads if part == "attn_q" else self.decoder.kv_heads
        half = len(array) // heads // 2
        sizes = (heads, half, 2) if from_gguf else (heads, 2, half)
        rows = array.reshape(*sizes, *array.shape[1:]).swapaxes(1, 2)
        return np.ascontiguousarray(rows).reshape(array.shape)

    def shifted(self, name: str, array: Array, *, from_gguf: bool) -> Array:
        """Returns an adapter's norm scale as the base model stores it.

        Hugging Face folders of some families (Gemma) store scales minus 1, GGUF files do not.

        Args:
            name: Name of the base model's tensor.
            array: The adapter's tensor; returned unchanged if it is not a norm scale.
            from_gguf: Whether the adapter is a GGUF file.
        """
        if from_gguf == self.is_gguf or not name.endswith("norm.weight"):
            return array
        shift = np.float32(self.family.norm_shift)
        return array - shift if from_gguf else array + shift

    @property
    def _permutes(self) -> bool:
        """Whether llama.cpp's converter permutes Q and K for interleaved RoPE."""
        if self.architecture not in ARCHITECTURES:
            return False
        _, form = ARCHITECTURES[self.architecture]
        return form.permuted and self.family.rotary == "halves"


def adapted_folder(path: Path, decoder: DecoderConfig) -> AdaptedModel:
    """Describes a Hugging Face folder as the base model of adapters.

    Args:
        path: The folder.
        decoder: The configuration read from it.
    """
    family = FAMILIES[decoder.family]
    if not family.architecture:
        return AdaptedModel(path, decoder, family, "", False)
    _, form = ARCHITECTURES[family.architecture]
    return AdaptedModel(path, decoder, family, family.architecture, False, form.names_in(()))


def adapted_gguf(file: GgufFile, decoder: DecoderConfig) -> AdaptedModel:
    """Describes a GGUF file as the base model of adapters.

    Args:
        file: The opened file.
        decoder: The configuration read from it.
    """
    architecture = decoder.family
    family, form = ARCHITECTURES[architecture]
    if decoder.experts is not None:  # Mixtral's files are read as Llama's
        alike = (f for f in FAMILIES.values() if f.architecture == architecture)
        family = next((f for f in alike if _EXPERTS in f.names), family)
    return AdaptedModel(file.path, decoder, family, architecture, True, form.names_in(file.tensors))
