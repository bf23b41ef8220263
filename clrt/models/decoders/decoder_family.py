"""Record of a family of decoders: structure, configuration, and storage in each file format."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import field
from typing import Any, Literal, TypeAlias

from clrt.models.decoders import family_options as by
from clrt.models.decoders import tensor_names
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.gguf_values import GgufValues
from clrt.models.decoders.tensor_names import Names
from clrt.models.huggingface.config_values import ConfigValues
from clrt.util.fast_dataclass import dataclass

Option: TypeAlias = Callable[[ConfigValues], Mapping[str, Any]]

#: Value of `GgufForm.fixed` for families that llama.cpp runs without sliding windows.
NO_WINDOWS: Mapping[str, object] = {"sliding_window": 0}


@dataclass(frozen=True)
class GgufForm:
    """The form in which llama.cpp stores the models of a family in GGUF files.

    Metadata is accessed by "Llama's keys": the names that values have in Llama's config.json
    (`GgufValues` translates them).

    Attributes:
        architecture: llama.cpp's name of the family ("general.architecture").
        keys: Metadata key by Llama's key, without the architecture before it, for values that the
            family stores under unusual keys.
        defaults: Llama's keys whose default in `DecoderFamily.defaults` also holds for GGUF files.
        fixed: Values by Llama's key that files do not store.
        flags: Name of a tensor by Llama's key of a flag: the flag is true if a file has the tensor;
            with "!" before the name, true if it has not.
        computed: Returns other values by Llama's key that files do not store, from (metadata,
            tensor names).
        options: Functions that replace `DecoderFamily.options` for GGUF files; None to use the
            latter.
        names: GGUF's name by clrt's name, for tensors of a layer whose two names differ.
        named_if: Name of a tensor: `names` apply only to files that have it; "" for all files.
        permuted: Whether llama.cpp's converter permutes the rows of Q and K, so that rotated pairs
            are adjacent elements.
        scaled: Whether norms have scales.
        tied: Whether a file may lack the head; the embeddings then serve as head.
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
        """Returns the values that a file does not store, by their names in Llama's config.json.

        Args:
            stored: Metadata of the file.
            tensors: Names of the file's tensors.
        """
        flags = {
            key: (name.removeprefix("!") in tensors) != name.startswith("!")
            for key, name in self.flags.items()
        }
        return {**self.fixed, **flags, **self.computed(stored, tensors)}

    def names_in(self, tensors: Container[str]) -> Mapping[str, str]:
        """Returns llama.cpp's name by clrt's name, for tensors of a file whose two names differ.

        Args:
            tensors: Names of the file's tensors.
        """
        return self.names if not self.named_if or self.named_if in tensors else {}


@dataclass(frozen=True)
class DecoderFamily:
    """A family of decoders: how to read its configuration and tensors; the defaults are Llama's.

    "Llama's keys" are the names that values have in Llama's config.json.

    Attributes:
        fields: DecoderConfig fields that are the same for all models of the family.
        activation: Activation by transformers' name, if the configuration names none.
        options: Functions that return further DecoderConfig fields from the configuration.
        windows: Which layers have a sliding window, if the configuration has a window size: "all",
            "none", or "kinds" for a choice by `layer_types` in the configuration, else by `kinds`.
        kinds: Returns for each layer whether it has a window, from (configuration, number of
            layers).
        rope_layers: Returns for each layer whether it has a rotary embedding, from (configuration,
            number of layers).
        rotary: Which elements of a head rotate together: "halves" (i and i + half) or
            "interleaved" (neighbours); "none" if the family has no RoPE.
        keys: Key in the family's config.json by Llama's key, for keys with different names.
        defaults: Values by Llama's key, for keys that config.json may omit.
        names: Names of tensors in checkpoints, by llama.cpp's name.
        norm_shift: Number to add to the scales of norms in checkpoints (Gemma stores them minus 1).
        transposed: Whether matrices of layers are stored as `[inputs, outputs]`.
        grouped: Whether Q, K and V are stored as one matrix, grouped by KV head: its Q heads, K, V.
        experts: How gate and up projections of experts are stored: "alone", a tensor per expert and
            projection; "halves", both as halves of one tensor; "transposed", in one transposed
            tensor with outputs of both interleaved.
        first_place: Number of rows in the position embedding table before the row of position 0.
        encoder: Returns the encoder's configuration from (values of config.json, the decoder's
            configuration); None for decoder-only families.
        gguf: Form of the family's GGUF files. If the files have the architecture of another family,
            only llama.cpp's name of this architecture; "" if clrt reads no GGUF files of the
            family.
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
