"""Reads the DecoderConfig of a Hugging Face folder from its config.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.models.decoders.decoder import (
    FULL,
    MAX_HEADS,
    SLIDING,
    DecoderConfig,
    RopeConfig,
    check_head_size,
)
from clrt.models.decoders.decoder_family import DecoderFamily
from clrt.models.decoders.families import COMPOSITE_MODELS, FAMILIES
from clrt.models.decoders.rotary import read_rotary
from clrt.models.huggingface.config_values import MAX_LAYERS, ConfigValues
from clrt.models.huggingface.model_files import read_object

_MAX_PLACES = 1 << 30


def read_decoder(
    folder: Path, context: int | None = None
) -> tuple[DecoderConfig, DecoderFamily, ConfigValues]:
    """Reads a decoder's configuration from the config.json of a Hugging Face folder.

    Args:
        folder: The model folder.
        context: Requested context length in tokens; None for that of config.json.

    Returns:
        The configuration, the model family, and the values of config.json (for a composite model,
        those of the object that describes its text decoder).

    Raises:
        ModelError: config.json is missing, or a value in it is wrong.
        UnsupportedError: The model type or an option of it is not supported.
        InputError: `context` exceeds the number of position embeddings.
    """
    config, name = _values(folder / "config.json")
    family = FAMILIES[name]
    if "quantization_config" in config:
        raise config.unsupported("quantization_config", "checkpoints that are not quantised are")
    sizes = _sizes(config)
    if context is None:
        context = sizes["context"]
    layers = sizes["layers"]
    kinds = _kinds(config, family, layers)
    window = config.integer("sliding_window", default=0, least=0)
    fields: dict[str, Any] = {
        "family": name,
        "epsilon": config.number("rms_norm_eps", 1e-6, least=0.0, most=1.0),
        "activation": config.text("hidden_act", "silu"),
        "windows": tuple(window - 1 if kind == SLIDING else -1 for kind in kinds),
        **sizes,
        "context": context,
        **family.fields,
    }
    fields |= {"rotaries": _rotaries(config, family, kinds, sizes["head_size"], context)}
    fields |= family.differences(config)
    places = fields.get("places", 0)
    if places and context > places:
        raise InputError(
            f"{config.file} gives embeddings of {places} places, but {context} are asked for; ask "
            "for no more."
        )
    decoder = DecoderConfig(**fields)
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
        raise UnsupportedError(f"{file} is of Whisper, which hears; open it by clrt.Transcriber.")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedError(
            f"{file} is of model type {str(name)[:80]!r}, which clrt cannot generate text with; "
            f"the types {', '.join(sorted({*FAMILIES, *COMPOSITE_MODELS}))} are supported."
        )
    family = FAMILIES[name]
    if inner:
        return ConfigValues(file, values).inner(inner, family.keys, family.defaults), name
    return ConfigValues(file, values, family.keys, family.defaults), name


def _sizes(config: ConfigValues) -> dict[str, int]:
    """Reads the sizes of a decoder from config.json, as fields of DecoderConfig by name."""
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads", most=MAX_HEADS)
    kv_heads = config.integer("num_key_value_heads", default=heads, most=MAX_HEADS)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
    if "head_dim" not in config and hidden % heads:
        raise config.wrong("num_attention_heads", f"a divisor of hidden_size {hidden}", heads)
    size = config.integer("head_dim", default=max(hidden // heads, 1))
    check_head_size(size, config.file)
    return {
        "vocabulary": config.integer("vocab_size"),
        "hidden": hidden,
        "layers": config.integer("num_hidden_layers", most=MAX_LAYERS),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": size,
        "intermediate": config.integer("intermediate_size", default=4 * hidden),
        "context": config.integer("max_position_embeddings", most=_MAX_PLACES),
    }


def _kinds(config: ConfigValues, family: DecoderFamily, layers: int) -> list[str]:
    """Returns the kind of attention of each layer: FULL, or SLIDING for one with a window."""
    if family.windows == "none" or config.integer("sliding_window", default=0, least=0) == 0:
        return [FULL] * layers
    if family.windows == "all":
        return [SLIDING] * layers
    if "layer_types" in config:
        return config.texts("layer_types", layers, (FULL, SLIDING))
    return [SLIDING if windowed else FULL for windowed in family.kinds(config, layers)]


def _rotaries(
    config: ConfigValues, family: DecoderFamily, kinds: list[str], head_size: int, context: int
) -> tuple[RopeConfig | None, ...]:
    """Returns the rotary embedding (RoPE) of each layer.

    Args:
        kinds: FULL or SLIDING of each layer.
        context: Requested context length in tokens; scaled frequencies may depend on it.

    Returns:
        An entry per layer, None for a layer without RoPE; () if the family never uses RoPE. Layers
        of one kind share an object.
    """
    if family.rotary == "none":
        return ()
    interleaved = family.rotary == "interleaved"
    by_kind = {
        k: read_rotary(config, head_size, context, k, interleaved) for k in sorted(set(kinds))
    }
    first = next(iter(by_kind.values()))
    if all(one.equals(first) for one in by_kind.values()):
        by_kind = dict.fromkeys(by_kind, first)
    rotated = family.rope_layers(config, len(kinds))
    return tuple(by_kind[k] if turns else None for k, turns in zip(kinds, rotated, strict=True))
