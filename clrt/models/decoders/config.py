"""Reads the DecoderConfig of a Hugging Face folder from its config.json."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.decoder_family import DecoderFamily
from clrt.models.decoders.families import COMPOSITE_MODELS, FAMILIES
from clrt.models.decoders.family_reader import read_family
from clrt.models.decoders.rotary import read_rotary
from clrt.models.huggingface.config_values import ConfigValues
from clrt.models.huggingface.model_files import read_object

# Sanity limit of context lengths, in tokens.
_MAX_PLACES = 1 << 30


def read_decoder(
    folder: Path, context: int | None = None
) -> tuple[DecoderConfig, DecoderFamily, ConfigValues]:
    """Reads a decoder's configuration from the config.json of a Hugging Face folder.

    Args:
        folder: The model folder.
        context: Requested context length in tokens; None for the context length
            in config.json.

    Returns:
        The configuration, the model family, and the values of config.json (for a composite model,
        only the values of the object that describes its text decoder).

    Raises:
        ModelError: config.json is missing, or a value in it is wrong.
        UnsupportedError: The model type or an option of it is not supported.
        InputError: `context` exceeds the number of position embeddings.
    """
    config, name = _values(folder / "config.json")
    family = FAMILIES[name]
    if "quantization_config" in config:
        raise config.unsupported("quantization_config", "checkpoints that are not quantised are")
    interleaved = family.rotary == "interleaved"
    decoder = read_family(
        config,
        family,
        {"family": name, "norm_shift": family.norm_shift},
        partial(read_rotary, config, interleaved=interleaved),
        context,
        _MAX_PLACES,
    )
    if decoder.places and decoder.context > decoder.places:
        raise InputError(
            f"{config.file} has embeddings for {decoder.places} positions, but {decoder.context} "
            "are requested; use a smaller context."
        )
    if family.encoder is not None:
        decoder = replace(decoder, encoder=family.encoder(config, decoder))
    return decoder, family, config


def _values(file: Path) -> tuple[ConfigValues, str]:
    """Returns the values of config.json that describe the text decoder, and its model type.

    Raises:
        ModelError: config.json is missing, damaged, or names no model type.
        UnsupportedError: The model type is unknown.
    """
    values = read_object(file)
    name, inner = values.get("model_type"), ""
    if name is None:
        raise ModelError(f"{file} has no 'model_type'; add it, for example \"llama\".")
    if isinstance(name, str) and name in COMPOSITE_MODELS:
        inner, default = COMPOSITE_MODELS[name]
        name = ConfigValues(file, values).inner(inner).text("model_type", default)
    if name == "whisper":
        raise UnsupportedError(
            f"{file} is a Whisper model, which transcribes speech; open it with clrt.Transcriber."
        )
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedError(
            f"{file} is of model type {str(name)[:80]!r}, with which clrt cannot generate text; "
            f"the types {', '.join(sorted({*FAMILIES, *COMPOSITE_MODELS}))} are supported."
        )
    family = FAMILIES[name]
    if inner:
        return ConfigValues(file, values).inner(inner, family.keys, family.defaults), name
    return ConfigValues(file, values, family.keys, family.defaults), name
