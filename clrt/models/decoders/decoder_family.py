"""Record of a family of Hugging Face decoders: tensor names, storage and configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from clrt.models.decoders import family_options as by
from clrt.models.decoders import tensor_names
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.tensor_names import Names
from clrt.models.huggingface.config_values import ConfigValues


@dataclass(frozen=True)
class DecoderFamily:
    """A family of decoders: how to read its config.json and its tensors.

    Attributes:
        names: Name of each tensor in checkpoints, by llama.cpp's name.
        keys: Key in the family's config.json by Llama's key, for keys with different names.
        defaults: Values of keys that config.json may omit.
        fields: DecoderConfig fields that are the same for all models of the family.
        differences: Returns additional DecoderConfig fields from the values of config.json.
        windows: Layers with a sliding window, if config.json has a window size: "all", "none", or
            "kinds" for those that `layer_types` in config.json or `kinds` tells.
        kinds: Returns for each of N layers whether it has a window, if config.json has no
            `layer_types`.
        rope_layers: Returns for each of N layers whether it has a rotary embedding.
        rotary: Pairing of rotated elements: "halves" or "interleaved"; "none" without RoPE.
        transposed: Whether matrices of layers are stored as `[inputs, outputs]`.
        grouped: Whether Q, K and V are stored as one matrix, grouped by KV head: its Q heads, K, V.
        experts: How gate and up projections of experts are stored: "alone", per expert; as "halves"
            of one tensor; or "transposed", with interleaved outputs.
        first_place: Number of rows in the position embedding table before that of position 0.
        encoder: Returns the encoder's configuration from config.json and the decoder's
            configuration; None for decoder-only families.
    """

    names: Names = field(default_factory=lambda: tensor_names.LLAMA)
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    differences: Callable[[ConfigValues], Mapping[str, Any]] = by.none
    windows: Literal["none", "all", "kinds"] = "none"
    kinds: Callable[[ConfigValues, int], list[bool]] = by.no_windows
    rope_layers: Callable[[ConfigValues, int], list[bool]] = by.rope_everywhere
    rotary: Literal["none", "halves", "interleaved"] = "halves"
    transposed: bool = False
    grouped: bool = False
    experts: Literal["alone", "halves", "transposed"] = "alone"
    first_place: int = 0
    encoder: Callable[[ConfigValues, DecoderConfig], DecoderConfig] | None = None
