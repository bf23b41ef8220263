"""Decoder families by model type, and model types that contain such a decoder."""

from __future__ import annotations

from clrt.models.decoders.decoder_family import DecoderFamily
from clrt.models.decoders.gpt_families import GPT_FAMILIES
from clrt.models.decoders.llama_families import LLAMA_FAMILIES
from clrt.models.decoders.t5_families import T5_FAMILIES

FAMILIES: dict[str, DecoderFamily] = {**LLAMA_FAMILIES, **GPT_FAMILIES, **T5_FAMILIES}

#: Model types with a nested text decoder: the object of config.json that describes it, and its
#: model type if the object does not say.
COMPOSITE_MODELS: dict[str, tuple[str, str]] = {
    "gemma3": ("text_config", "gemma3_text"),
    "mistral3": ("text_config", "mistral"),
}
