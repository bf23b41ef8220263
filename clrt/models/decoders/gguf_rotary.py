"""Rotary embeddings as the metadata and tensors of a GGUF file describe them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.op import Array
from clrt.models.decoders.decoder import FULL, RopeConfig
from clrt.models.decoders.gguf_keys import DecoderKeys
from clrt.models.decoders.gguf_weights import GgufWeights
from clrt.models.decoders.rotary import read_rotary
from clrt.models.huggingface.config_values import ConfigValues

_SCALINGS = ("none", "linear", "yarn", "longrope")
_MOST_PLACES = 1 << 24
_MOST_FACTOR = 1e6
_FACTORS = "rope_freqs.weight"


def gguf_rotary(
    keys: DecoderKeys, weights: GgufWeights, head_size: int, context: int, *, interleaved: bool
) -> RopeConfig:
    """The rotary embedding of layers without a window, and of all where they are alike.

    Args:
        context: Places that are asked for.

    Raises:
        ModelError: A key or a tensor is wrong.
        UnsupportedError: The kind of scaling is not known.
    """
    turned = _turned(keys, head_size)
    rope = _scaling(keys, weights, turned)
    trained = keys.integer("context_length", most=_MOST_PLACES)
    values = {
        "rope_theta": keys.number("rope.freq_base", 1e4, least=1.0, most=1e12),
        "max_position_embeddings": trained,
        "rope_scaling": rope,
    }
    made = _made(keys.metadata.file, values, turned, context, interleaved)
    if rope["rope_type"] != "longrope":
        made = replace(made, factor=made.factor * _attention_factor(keys))
    if _FACTORS not in weights:
        return made
    factors = _factors(weights, _FACTORS, turned)
    long = None if made.long is None else made.long / factors
    return replace(made, frequencies=made.frequencies / factors, long=long)


def gguf_local_rotary(
    keys: DecoderKeys, head_size: int, context: int, base: float | None
) -> RopeConfig:
    """The rotary embedding of layers with a window, where their places are not scaled.

    Args:
        base: The base of the powers by default; None for that of the other layers.

    Raises:
        ModelError: A key is wrong.
    """
    if base is None:
        base = keys.number("rope.freq_base", 1e4, least=1.0, most=1e12)
    theta = keys.number("rope.freq_base_swa", base, least=1.0, most=1e12)
    turned = _turned(keys, head_size)
    return _made(keys.metadata.file, {"rope_theta": theta}, turned, context, False)


def _made(
    file: Path, values: dict[str, Any], turned: int, context: int, interleaved: bool
) -> RopeConfig:
    """By what Hugging Face calls these values; they are checked."""
    return read_rotary(ConfigValues(file, values), turned, context, FULL, interleaved)


def _turned(keys: DecoderKeys, head_size: int) -> int:
    """How many elements of a head turn."""
    name = "rope.dimension_count"
    turned = keys.integer(name, head_size, least=2, most=head_size)
    if turned % 2:
        raise keys.wrong(name, "an even number", turned)
    return turned


def _scaling(keys: DecoderKeys, weights: GgufWeights, turned: int) -> dict[str, Any]:
    """How frequencies are scaled, under Hugging Face's names."""
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in _SCALINGS:
        raise UnsupportedError(
            f"The metadata '{keys.key('rope.scaling.type')}' of {keys.metadata.file} is "
            f"{kind[:80]!r}, which clrt does not know ({', '.join(_SCALINGS)}); update clrt."
        )
    if "rope_factors_long.weight" in weights:
        return _longrope(keys, weights, turned)
    if kind == "longrope":
        raise ModelError(
            f"{keys.metadata.file} has no tensor 'rope_factors_long.weight', which its "
            f"'{keys.key('rope.scaling.type')}' needs; convert the model again."
        )
    name = "rope.scaling.factor" if "rope.scaling.factor" in keys else "rope.scale_linear"
    factor = keys.number(name, 1.0, least=0.0, most=_MOST_FACTOR) or 1.0
    if kind == "none" or factor == 1:
        return {"rope_type": "default"}
    if factor < 1 / _MOST_FACTOR:
        raise keys.wrong(name, f"a number of {1 / _MOST_FACTOR:g} to {_MOST_FACTOR:g}", factor)
    return {"rope_type": kind, "factor": factor, **(_yarn(keys) if kind == "yarn" else {})}


def _yarn(keys: DecoderKeys) -> dict[str, Any]:
    name = "rope.scaling.yarn_"
    given: dict[str, Any] = {
        "original_max_position_embeddings": _original(keys),
        "beta_fast": keys.number(f"{name}beta_fast", 32.0, least=1e-3, most=1e6),
        "beta_slow": keys.number(f"{name}beta_slow", 1.0, least=1e-3, most=1e6),
    }
    all_dim = keys.number(f"{name}log_multiplier", 0.0, least=0.0, most=1e3)
    return {**given, "mscale": 1.0, "mscale_all_dim": all_dim} if all_dim else given


def _longrope(keys: DecoderKeys, weights: GgufWeights, turned: int) -> dict[str, Any]:
    """Both tensors of factors are read, so that both are known."""
    factors = {
        kind: _factors(weights, f"rope_factors_{kind}.weight", turned).tolist()
        for kind in ("long", "short")
    }
    return {
        "rope_type": "longrope",
        "long_factor": factors["long"],
        "short_factor": factors["short"],
        "original_max_position_embeddings": _original(keys),
        "attention_factor": _attention_factor(keys),
    }


def _attention_factor(keys: DecoderKeys) -> float:
    """Cosines and sines are multiplied by it."""
    return keys.number("rope.scaling.attn_factor", 1.0, least=0.0, most=_MOST_FACTOR)


def _original(keys: DecoderKeys) -> int:
    trained = keys.integer("context_length", most=_MOST_PLACES)
    return keys.integer("rope.scaling.original_context_length", trained, most=_MOST_PLACES)


def _factors(weights: GgufWeights, name: str, turned: int) -> Array:
    """By how much the frequency of each pair is divided."""
    factors = weights.load(name, (turned // 2,)).astype(np.float32)
    if not ((factors > 1 / _MOST_FACTOR) & (factors < _MOST_FACTOR)).all():
        raise ModelError(
            f"Tensor '{name}' of {weights.path} has factors that are no numbers above 0; download "
            "the model again."
        )
    return factors
