"""Metadata of a GGUF file under Llama's keys of config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clrt.errors import ModelError
from clrt.formats.gguf.metadata import Metadata
from clrt.models.huggingface.config_values import MAX_LAYERS, ConfigValues

_REMEDY = "download the model again, or convert it with a newer llama.cpp."
#: Key of Llama's config.json -> GGUF metadata key without the architecture's prefix. Other keys
#: have the same name in both.
_KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "layer_types": "attention.sliding_window_pattern",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "clip_qkv": "attention.clamp_kqv",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
# Keys without a default: llama.cpp's converter always writes them.
_REQUIRED = ("intermediate_size", "rms_norm_eps", "logits_scaling")
# Keys that a file may store as an array with an equal element for each layer.
_PER_LAYER = (
    "num_attention_heads",
    "num_key_value_heads",
    "num_kv_heads",
    "intermediate_size",
    "num_experts_per_tok",
    "moe_intermediate_size",
)


class GgufValues(ConfigValues):
    """Metadata of a GGUF file, accessed by the keys that Llama's config.json has.

    Key "hidden_size" means the metadata "ARCHITECTURE.embedding_length", and so on; a key without a
    known name in llama.cpp means "ARCHITECTURE.key".

    Attributes:
        metadata: All metadata of the file.

    Args:
        metadata: All metadata of the file.
        names: Metadata key (without the architecture before it) by Llama's key, for keys with
            unusual names in this file; None for none.
        defaults: Values by Llama's key, for keys that may be missing; None for none.
        fixed: Values by Llama's key that override values of the file; None for none.
    """

    def __init__(
        self,
        metadata: Metadata,
        names: Mapping[str, str] | None = None,
        defaults: Mapping[str, object] | None = None,
        fixed: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(metadata.file, {}, {**_KEYS, **(names or {})}, fixed=fixed)
        self.metadata = metadata
        self._defaults: Mapping[str, Any] = defaults or {}
        self._architecture = metadata.text("general.architecture")

    def __contains__(self, key: str) -> bool:
        if key == "layer_types":
            return isinstance(self.metadata.get(self.metadata_key(key)), np.ndarray)
        return super().__contains__(key) or self.metadata_key(key) in self.metadata

    def metadata_key(self, key: str) -> str:
        """Returns the full metadata key, "ARCHITECTURE.name"."""
        return f"{self._architecture}.{self.name_of(key)}"

    def integer(
        self, key: str, default: int | None = None, least: int = 1, most: int = (1 << 31) - 1
    ) -> int:
        """Returns an integer in [least, most]; the default if the key is missing.

        Some keys may hold an array with an equal element for each layer.

        Raises:
            ModelError: The value is not an integer, out of range, missing without a default, or
                layers have different values.
        """
        if super().__contains__(key):
            return super().integer(key, default, least, most)
        kind, name = f"a whole number of {least} to {most}", self.metadata_key(key)
        if key in _PER_LAYER and isinstance(self.metadata.get(name), np.ndarray):
            values = set(self.metadata.numbers(name).tolist())
            if len(values) != 1:
                layers = self.integer("num_hidden_layers", most=MAX_LAYERS)
                raise self.wrong(key, f"one number for all {layers} layers", sorted(values)[:4])
            value = values.pop()
            if type(value) is not int:
                raise self.wrong(key, kind, value)
        else:
            value = self.metadata.integer(name, self._default(key, default))
        if not least <= value <= most:
            raise self.wrong(key, kind, value)
        return value

    def number(
        self,
        key: str,
        default: float | None = None,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> float:
        """Returns a finite number in [least, most]; the default if the key is missing.

        Raises:
            ModelError: The value is not a number, not finite, out of range, or missing without a
                default.
        """
        if super().__contains__(key):
            return super().number(key, default, least, most)
        value = self.metadata.number(self.metadata_key(key), self._default(key, default))
        if not math.isfinite(value) or not least <= value <= most:
            raise self.wrong(key, f"a number of {least:g} to {most:g}", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Returns a boolean; the default if the key is missing.

        Raises:
            ModelError: The value is not a boolean.
        """
        if super().__contains__(key):
            return super().flag(key, default)
        return self.metadata.flag(self.metadata_key(key), self._default(key, default))

    def text(self, key: str, default: str) -> str:
        """Returns a string; the default if the key is missing.

        Raises:
            ModelError: The value is not a string.
        """
        return self.metadata.text(self.metadata_key(key), self._default(key, default))

    def texts(self, key: str, count: int, known: Sequence[str]) -> list[str]:
        """Returns a string for each layer, selected by a flag of the layer.

        Args:
            key: Key of an array with a flag per layer.
            count: Number of layers.
            known: The string of layers with flag 0, and the string of layers with flag 1.

        Raises:
            ModelError: The array is missing or too short.
        """
        flags = self.metadata.numbers(self.metadata_key(key))
        if len(flags) < count:
            raise self.wrong(key, f"an array of {count}", f"one of {len(flags)}")
        return [known[bool(flag)] for flag in flags[:count]]

    def wrong(self, key: str, kind: str, value: object) -> ModelError:
        """Returns the error for a value of the wrong type or range.

        Args:
            key: Key of the value.
            kind: The expected value, e.g. "an even number".
            value: The value in the file.
        """
        return ModelError(
            f"The metadata '{self.metadata_key(key)}' of {self.file} is {value} and not {kind}; "
            f"{_REMEDY}"
        )

    def _default(self, key: str, default: Any) -> Any:
        return None if key in _REQUIRED else self._defaults.get(key, default)
