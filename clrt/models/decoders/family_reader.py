"""Reads the DecoderConfig of a family from the values of config.json or of GGUF metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clrt.models.decoders.decoder import (
    FULL,
    MAX_HEADS,
    SLIDING,
    DecoderConfig,
    RopeConfig,
    check_head_size,
)
from clrt.models.decoders.decoder_family import DecoderFamily, Option
from clrt.models.huggingface.config_values import MAX_LAYERS, ConfigValues


def read_family(
    values: ConfigValues,
    family: DecoderFamily,
    fields: Mapping[str, Any],
    read_rotary: Callable[[int, int, str], RopeConfig],
    context: int | None,
    max_context: int,
    options: tuple[Option, ...] | None = None,
) -> DecoderConfig:
    """Returns the configuration of a decoder.

    Args:
        values: Values of the model's configuration, by the keys that Llama's config.json has.
        family: The model's family.
        fields: Fields of DecoderConfig; `family.fields` override them.
        read_rotary: Returns the rotary embedding of layers with full attention, or of layers with a
            window, from (elements of a head, context length, FULL or SLIDING).
        context: Requested context length in tokens; None for the context length in
            `values`.
        max_context: Maximum context length that `values` may have.
        options: Functions that return further fields of DecoderConfig from `values`; None for
            `family.options`.

    Raises:
        ModelError: A value is missing or wrong.
        UnsupportedError: An option of the model is not supported.
    """
    sizes = _sizes(values, max_context)
    context = sizes["context"] if context is None else context
    kinds = _kinds(values, family, sizes["layers"])
    window = values.integer("sliding_window", default=0, least=0) if SLIDING in kinds else 0
    all_fields: dict[str, Any] = {
        "epsilon": values.number("rms_norm_eps", 1e-6, least=0.0, most=1.0),
        "activation": values.text("hidden_act", family.activation),
        "windows": tuple(window - 1 if k == SLIDING else -1 for k in kinds) if window else (),
        **sizes,
        "context": context,
        **fields,
        **family.fields,
    }
    by_kind = {}
    if family.rotary != "none":
        by_kind = {k: read_rotary(sizes["head_size"], context, k) for k in sorted(set(kinds))}
    all_fields["rotaries"] = _rotaries(by_kind, kinds, family.rope_layers(values, len(kinds)))
    for option in family.options if options is None else options:
        all_fields |= option(values)
    return DecoderConfig(**all_fields)


def _sizes(values: ConfigValues, max_context: int) -> dict[str, int]:
    """Reads and checks the sizes of a decoder; returns fields of DecoderConfig by name.

    Args:
        values: Values of the model's configuration.
        max_context: Maximum context length that `values` may have.

    Raises:
        ModelError: A size is missing or wrong, or two sizes do not match.
    """
    hidden = values.integer("hidden_size")
    heads = values.integer("num_attention_heads", most=MAX_HEADS)
    kv_heads = values.integer("num_key_value_heads", default=heads, most=MAX_HEADS)
    if heads % kv_heads:
        raise values.wrong("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
    if "head_dim" not in values and hidden % heads:
        kind = f"a divisor of {values.name_of('hidden_size')} {hidden}"
        raise values.wrong("num_attention_heads", kind, heads)
    size = values.integer("head_dim", default=max(hidden // heads, 1))
    check_head_size(size, values.file)
    return {
        "vocabulary": values.integer("vocab_size"),
        "hidden": hidden,
        "layers": values.integer("num_hidden_layers", most=MAX_LAYERS),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": size,
        "intermediate": values.integer("intermediate_size", default=4 * hidden),
        "context": values.integer("max_position_embeddings", most=max_context),
    }


def _kinds(values: ConfigValues, family: DecoderFamily, layers: int) -> list[str]:
    """Returns the kind of attention of each layer: SLIDING if it has a window, else FULL."""
    if family.windows == "none" or values.integer("sliding_window", default=0, least=0) == 0:
        return [FULL] * layers
    if family.windows == "all":
        return [SLIDING] * layers
    if "layer_types" in values:
        return values.texts("layer_types", layers, (FULL, SLIDING))
    return [SLIDING if windowed else FULL for windowed in family.kinds(values, layers)]


def _rotaries(
    by_kind: Mapping[str, RopeConfig], kinds: list[str], rotated: list[bool]
) -> tuple[RopeConfig | None, ...]:
    """Returns the rotary embedding (RoPE) of each layer.

    Args:
        by_kind: Rotary embedding by kind of attention (FULL, SLIDING); {} if the family has no
            RoPE.
        kinds: Kind of attention of each layer, FULL or SLIDING.
        rotated: Whether each layer has a rotary embedding.

    Returns:
        An entry per layer, None for a layer without RoPE; () if the family has no RoPE. Layers of
        one kind share an object; all layers do if both kinds rotate by the same angles.
    """
    if not by_kind:
        return ()
    first = next(iter(by_kind.values()))
    if all(one.equals(first) for one in by_kind.values()):
        by_kind = dict.fromkeys(by_kind, first)
    return tuple(by_kind[k] if turns else None for k, turns in zip(kinds, rotated, strict=True))
