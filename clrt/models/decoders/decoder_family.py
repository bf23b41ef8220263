"""Record of a family of decoders: structure, configuration, and storage in each file format."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from clrt.models.decoders import family_options as by
from clrt.models.decoders import tensor_names
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.gguf_values import GgufValues
from clrt.models.decoders.tensor_names import Names
from clrt.models.huggingface.config_values import ConfigValues

Option: TypeAlias = Callable[[ConfigValues], Mapping[str, Any]]

#: Values of `GgufForm.fixed` for a family without windows in llama.cpp.
NO_WINDOWS: Mapping[str, object] = {"sliding_window": 0}


@dataclass(frozen=True)
class GgufForm:
    """How llama.cpp stores the models of a family in GGUF files.

    Metadata is read under Llama's keys of config.json (`clrt.models.decoders.gguf_values`), by the
    options of the family.

    Attributes:
        architecture: llama.cpp's name of the family ("general.architecture").
        keys: Metadata key, without the architecture before it, by Llama's key, if not the usual.
        defaults: Llama's keys whose default in the family's `defaults` holds for GGUF files, too.
        fixed: Values, by Llama's key, that files do not store.
        flags: Tensor by Llama's key of a flag: the flag is set if a file has the tensor; with "!"
            before the name, if it has not.
        computed: Returns other values that files do not store, from the metadata and tensor names.
        options: Options of the family in GGUF files, if they are others.
        names: llama.cpp's name by clrt's name, for tensors of a layer with different names.
        named_if: Tensor that a file has if `names` hold for it; "" if they hold for all.
        permuted: Whether llama.cpp's converter permutes the rows of Q and K, so that rotated pairs
            are adjacent elements.
        scaled: Whether norms have scales.
        tied: Whether the head may be missing; the embeddings then serve as head.
    """

    architecture: str
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: tuple[str, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    computed: Callable[[GgufValues, Container[str]], Mapping[str, object]] = by.none_computed
    options: tuple[Option, ...] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    named_if: str = ""
    permuted: bool = False
    scaled: bool = True
    tied: bool = True

    def values_in(self, stored: GgufValues, tensors: Container[str]) -> dict[str, object]:
        """Returns the values that a file does not store, by Llama's key.

        Args:
            stored: Metadata of the file.
            tensors: Names of its tensors.
        """
        flags = {
            key: (name.removeprefix("!") in tensors) != name.startswith("!")
            for key, name in self.flags.items()
        }
        return {**self.fixed, **flags, **self.computed(stored, tensors)}

    def names_in(self, tensors: Container[str]) -> Mapping[str, str]:
        """Returns llama.cpp's name by clrt's name, for a file with these tensors."""
        return self.names if not self.named_if or self.named_if in tensors else {}


@dataclass(frozen=True)
class DecoderFamily:
    """A family of decoders: how to read its configuration and tensors; the defaults are Llama's.

    Functions of (config, number of layers) return a flag for each layer.

    Attributes:
        fields: DecoderConfig fields that are the same for all models of the family.
        activation: Activation by transformers' name, if the configuration names none.
        options: Functions that return further DecoderConfig fields from the configuration.
        windows: Layers with a sliding window, if there is a window size: "all", "none", or "kinds"
            for those that the configuration lists or `kinds` tells.
        kinds: Returns whether each layer has a window, if the configuration does not list them.
        rope_layers: Returns whether each layer has a rotary embedding.
        rotary: Pairing of rotated elements: "halves" or "interleaved"; "none" without RoPE.
        keys: Key in the family's config.json by Llama's key, for keys with different names.
        defaults: Values of keys that config.json may omit.
        names: Name of each tensor in checkpoints, by llama.cpp's name.
        norm_shift: Number to add to the scales of norms in checkpoints (Gemma stores them minus 1).
        transposed: Whether matrices of layers are stored as `[inputs, outputs]`.
        grouped: Whether Q, K and V are stored as one matrix, grouped by KV head: its Q heads, K, V.
        experts: How gate and up projections of experts are stored: "alone", per expert; as "halves"
            of one tensor; or "transposed", with interleaved outputs.
        first_place: Number of rows in the position embedding table before that of position 0.
        encoder: Returns the encoder's configuration from config.json and the decoder's
            configuration; None for decoder-only families.
        gguf: Form of the family's GGUF files; only llama.cpp's name of the family if its files are
            read as those of another family; "" if llama.cpp has none, or clrt cannot read it.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    activation: str = "silu"
    options: tuple[Option, ...] = ()
    windows: Literal["none", "all", "kinds"] = "none"
    kinds: Callable[[ConfigValues, int], list[bool]] = by.no_windows
    rope_layers: Callable[[ConfigValues, int], list[bool]] = by.rope_everywhere
    rotary: Literal["none", "halves", "interleaved"] = "halves"
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    names: Names = field(default_factory=lambda: tensor_names.LLAMA)
    norm_shift: float = 0.0
    transposed: bool = False
    grouped: bool = False
    experts: Literal["alone", "halves", "transposed"] = "alone"
    first_place: int = 0
    encoder: Callable[[ConfigValues, DecoderConfig], DecoderConfig] | None = None
    gguf: GgufForm | str = ""

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the family; "" if it has none."""
        return self.gguf if isinstance(self.gguf, str) else self.gguf.architecture
