"""Decoder families by model type, and model types that contain such a decoder."""

from __future__ import annotations

from clrt.models.decoders.decoder_family import DecoderFamily, GgufForm
from clrt.models.decoders.gpt_families import GPT_FAMILIES
from clrt.models.decoders.llama_families import LLAMA_FAMILIES
from clrt.models.decoders.t5_families import T5_FAMILIES

FAMILIES: dict[str, DecoderFamily] = {**LLAMA_FAMILIES, **GPT_FAMILIES, **T5_FAMILIES}

#: llama.cpp's architecture name -> decoder family and the form of its GGUF files.
ARCHITECTURES: dict[str, tuple[DecoderFamily, GgufForm]] = {
    family.architecture: (family, family.gguf)
    for family in FAMILIES.values()
    if isinstance(family.gguf, GgufForm)
}

#: Model type with a nested text decoder -> (object of config.json that describes the decoder,
#: default model type of the decoder).
COMPOSITE_MODELS: dict[str, tuple[str, str]] = {
    "gemma3": ("text_config", "gemma3_text"),
    "mistral3": ("text_config", "mistral"),
}
