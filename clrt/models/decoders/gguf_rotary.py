"""Reads rotary embeddings from the metadata and tensors of a GGUF file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.op import Array
from clrt.models.decoders.decoder import FULL, SLIDING, RopeConfig
from clrt.models.decoders.gguf_values import GgufValues
from clrt.models.decoders.gguf_weights import GgufWeights
from clrt.models.decoders.rotary import read_rotary
from clrt.models.huggingface.config_values import ConfigValues

_SCALINGS = ("none", "linear", "yarn", "longrope")
# Sanity limit of context lengths, in tokens.
_MAX_PLACES = 1 << 24
# Sanity limit of RoPE factors and of their inverses.
_MAX_FACTOR = 1e6
_FACTORS = "rope_freqs.weight"


def gguf_rotary(
    values: GgufValues,
    weights: GgufWeights,
    head_size: int,
    context: int,
    kind: str,
    *,
    interleaved: bool,
    has_local: bool,
) -> RopeConfig:
    """Returns the rotary embedding of layers with full attention, or of layers with a window.

    Args:
        values: Metadata of the file.
        weights: Tensors of the file, among them divisors of frequencies.
        head_size: Elements of a head.
        context: Requested context length in tokens.
        kind: FULL for the layers with full attention, SLIDING for those with a window.
        interleaved: Whether rotated pairs are adjacent elements.
        has_local: Whether layers with a window have a RoPE base of their own, and no scaling of
            positions.

    Raises:
        ModelError: A metadata key or a tensor of RoPE factors is missing or wrong.
        UnsupportedError: The kind of scaling is unknown.
    """
    rotary_dim, theta = _rotary_dim(values, head_size), _base(values, "rope_theta", 1e4)
    if kind == SLIDING and has_local:
        theta = _base(values, "rope_local_base_freq", theta)
        return _read(values.file, {"rope_theta": theta}, rotary_dim, context, interleaved)
    rope = _scaling(values, weights, rotary_dim)
    trained = values.integer("max_position_embeddings", most=_MAX_PLACES)
    keys = {"rope_theta": theta, "max_position_embeddings": trained, "rope_scaling": rope}
    config = _read(values.file, keys, rotary_dim, context, interleaved)
    if rope["rope_type"] != "longrope":
        config = replace(config, factor=config.factor * _attention_factor(values))
    if _FACTORS not in weights:
        return config
    factors = _factors(weights, _FACTORS, rotary_dim)
    long = None if config.long is None else config.long / factors
    return replace(config, frequencies=config.frequencies / factors, long=long)


def _base(values: GgufValues, key: str, default: float) -> float:
    """Returns the RoPE base under a key; `default` if the key is missing."""
    return values.number(key, default, least=1.0, most=1e12)


def _read(
    file: Path, values: dict[str, Any], rotary_dim: int, context: int, interleaved: bool
) -> RopeConfig:
    """Returns the rotary embedding described by values as in a config.json of Hugging Face.

    Args:
        file: The GGUF file, for messages.
        values: RoPE base, scaling and trained context length as in a config.json.
        rotary_dim: Number of rotated elements of a head.
        context: Requested context length in tokens.
        interleaved: Whether rotated pairs are adjacent elements.

    Raises:
        ModelError: A value is wrong.
    """
    return read_rotary(ConfigValues(file, values), rotary_dim, context, FULL, interleaved)


def _rotary_dim(values: GgufValues, head_size: int) -> int:
    """Returns the number of rotated elements of a head."""
    name = "rope.dimension_count"
    rotary_dim = values.integer(name, head_size, least=2, most=head_size)
    if rotary_dim % 2:
        raise values.wrong(name, "an even number", rotary_dim)
    return rotary_dim


def _scaling(values: GgufValues, weights: GgufWeights, rotary_dim: int) -> dict[str, Any]:
    """Returns the scaling of RoPE frequencies in the form of Hugging Face's `rope_scaling` object.

    Raises:
        ModelError: A metadata key is wrong, or the factors of LongRoPE are missing.
        UnsupportedError: The kind of scaling is unknown.
    """
    kind = values.text("rope.scaling.type", "linear")
    if kind not in _SCALINGS:
        raise UnsupportedError(
            f"The metadata '{values.metadata_key('rope.scaling.type')}' of {values.file} is "
            f"{kind[:80]!r}, which clrt does not support ({', '.join(_SCALINGS)}); update clrt."
        )
    if "rope_factors_long.weight" in weights:
        return _longrope(values, weights, rotary_dim)
    if kind == "longrope":
        raise ModelError(
            f"{values.file} has no tensor 'rope_factors_long.weight', which its "
            f"'{values.metadata_key('rope.scaling.type')}' needs; convert the model again."
        )
    name = "rope.scaling.factor" if "rope.scaling.factor" in values else "rope.scale_linear"
    factor = values.number(name, 1.0, least=0.0, most=_MAX_FACTOR) or 1.0
    if kind == "none" or factor == 1:
        return {"rope_type": "default"}
    if factor < 1 / _MAX_FACTOR:
        raise values.wrong(name, f"a number of {1 / _MAX_FACTOR:g} to {_MAX_FACTOR:g}", factor)
    return {"rope_type": kind, "factor": factor, **(_yarn(values) if kind == "yarn" else {})}


def _yarn(values: GgufValues) -> dict[str, Any]:
    """Returns the parameters of YaRN scaling, by their keys in Hugging Face's `rope_scaling`."""
    name = "rope.scaling.yarn_"
    scaling: dict[str, Any] = {
        "original_max_position_embeddings": _original(values),
        "beta_fast": values.number(f"{name}beta_fast", 32.0, least=1e-3, most=1e6),
        "beta_slow": values.number(f"{name}beta_slow", 1.0, least=1e-3, most=1e6),
    }
    all_dim = values.number(f"{name}log_multiplier", 0.0, least=0.0, most=1e3)
    return {**scaling, "mscale": 1.0, "mscale_all_dim": all_dim} if all_dim else scaling


def _longrope(values: GgufValues, weights: GgufWeights, rotary_dim: int) -> dict[str, Any]:
    """Returns LongRoPE's scaling in the form of Hugging Face's `rope_scaling` object."""
    factors = {
        kind: _factors(weights, f"rope_factors_{kind}.weight", rotary_dim).tolist()
        for kind in ("long", "short")
    }
    return {
        "rope_type": "longrope",
        "long_factor": factors["long"],
        "short_factor": factors["short"],
        "original_max_position_embeddings": _original(values),
        "attention_factor": _attention_factor(values),
    }


def _attention_factor(values: GgufValues) -> float:
    """Returns the multiplier of RoPE's cosines and sines; 1 if the file has none."""
    return values.number("rope.scaling.attn_factor", 1.0, least=0.0, most=_MAX_FACTOR)


def _original(values: GgufValues) -> int:
    """Returns the context length, in tokens, that the model was trained with before scaling."""
    trained = values.integer("max_position_embeddings", most=_MAX_PLACES)
    return values.integer("rope.scaling.original_context_length", trained, most=_MAX_PLACES)


def _factors(weights: GgufWeights, name: str, rotary_dim: int) -> Array:
    """Reads divisors of RoPE frequencies: one per rotated pair, float32 `[rotary_dim / 2]`.

    Args:
        name: Name of the tensor.

    Raises:
        ModelError: The tensor is missing, has another shape, or a divisor is not above 0.
    """
    factors = weights.load(name, (rotary_dim // 2,)).astype(np.float32)
    if not ((factors > 1 / _MAX_FACTOR) & (factors < _MAX_FACTOR)).all():
        raise ModelError(
            f"Tensor '{name}' of {weights.path} has factors that are not numbers above 0; download "
            "the model again."
        )
    return factors
