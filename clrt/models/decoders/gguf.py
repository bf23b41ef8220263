"""Reads decoders from GGUF files of llama.cpp."""

from __future__ import annotations

from typing import Any

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.formats.gguf.file import GgufFile
from clrt.models.decoders.decoder import MAX_HEADS, DecoderConfig, RopeConfig, check_head_size
from clrt.models.decoders.gguf_architectures import ARCHITECTURES, Architecture
from clrt.models.decoders.gguf_keys import DecoderKeys
from clrt.models.decoders.gguf_rotary import gguf_local_rotary, gguf_rotary
from clrt.models.decoders.gguf_weights import GgufWeights
from clrt.models.huggingface.config_values import MAX_LAYERS

# Maximum number of positions: the page table has an entry per KV page of each sequence.
_MAX_PLACES = 1 << 24
_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"


def read_gguf_decoder(
    file: GgufFile, context: int | None = None
) -> tuple[DecoderConfig, GgufWeights]:
    """Returns the configuration and weights of the decoder in a GGUF file; weights are read on use.

    Args:
        context: Requested context length, which some rotary embeddings depend on; None for that of
            the file.

    Raises:
        ModelError: A key or a tensor is missing or wrong.
        UnsupportedError: The architecture or an option of it is unknown.
    """
    keys = DecoderKeys(file.metadata)
    if keys.architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{file.path} is of the architecture {keys.architecture[:80]!r}, which clrt cannot "
            f"generate text with; those known are {', '.join(sorted(ARCHITECTURES))}."
        )
    architecture = ARCHITECTURES[keys.architecture]
    weights = GgufWeights(file, architecture.names(file.tensors))
    if not architecture.tied and _HEAD not in weights:
        raise ModelError(f"{file.path} has no tensor '{_HEAD}'; download the model again.")
    sizes = _sizes(keys, file)
    if context is None:
        context = sizes["context"]
    layers, norm = sizes["layers"], architecture.fields.get("norm", "rms")
    epsilon = "layer_norm_epsilon" if norm == "layer" else "layer_norm_rms_epsilon"
    windows = _windows(keys, architecture, layers)
    fields: dict[str, Any] = {
        "family": keys.architecture,
        "epsilon": keys.number(f"attention.{epsilon}", least=0.0, most=1.0),
        "windows": windows,
        "scale": keys.number("attention.scale", 0.0, least=0.0) or None,
        **sizes,
        **architecture.fields,
        "rotaries": _rotaries(keys, architecture, weights, windows, sizes["head_size"], context),
    }
    fields |= architecture.differences(keys, file.tensors)
    decoder = DecoderConfig(**{**fields, "context": context})
    _check_norms(decoder, architecture, weights)
    _check_layers(file, layers)
    return decoder, weights


def _sizes(keys: DecoderKeys, file: GgufFile) -> dict[str, int]:
    """Reads the sizes of a decoder from a GGUF file, as fields of DecoderConfig by name.

    Raises:
        ModelError: A key or the embedding table is missing or wrong.
        UnsupportedError: Attention kernels do not support the head size.
    """
    embeddings = file.tensors.get(_EMBEDDINGS)
    if embeddings is None or len(embeddings.shape) != 2:
        what = "no tensor" if embeddings is None else "no matrix"
        raise ModelError(f"{file.path} has {what} '{_EMBEDDINGS}'; download the model again.")
    layers = keys.integer("block_count", most=MAX_LAYERS)
    hidden = keys.integer("embedding_length")
    heads = keys.shared("attention.head_count", layers, most=MAX_HEADS)
    kv_heads = keys.shared("attention.head_count_kv", layers, heads, most=MAX_HEADS)
    if heads % kv_heads:
        raise keys.wrong("attention.head_count_kv", f"a divisor of {heads} heads", kv_heads)
    if "attention.key_length" not in keys and hidden % heads:
        raise keys.wrong("attention.head_count", f"a divisor of embedding_length {hidden}", heads)
    size = keys.integer("attention.key_length", max(hidden // heads, 1))
    check_head_size(size, file.path)
    if (values := keys.integer("attention.value_length", size)) != size:
        raise keys.wrong("attention.value_length", f"the {size} of keys", values)
    has_experts = "expert_count" in keys
    return {
        "vocabulary": embeddings.shape[0],
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": size,
        "intermediate": keys.shared("feed_forward_length", layers, 1 if has_experts else None),
        "context": keys.integer("context_length", most=_MAX_PLACES),
    }


def _check_norms(decoder: DecoderConfig, architecture: Architecture, weights: GgufWeights) -> None:
    """Checks that the file has the scales of norms, because graphs use 1 for missing ones.

    Does nothing for architectures whose norms have no scales. Only layer 0 is checked.

    Raises:
        ModelError: The scale of a norm is missing.
    """
    before = ["attn_norm", *([] if decoder.parallel else ["ffn_norm"])]
    after = ["post_attention_norm", "post_ffw_norm"]
    norms = {"before": before, "after": after, "both": before + after}[decoder.norms]
    names = ["output_norm.weight", *(f"blk.0.{name}.weight" for name in norms)]
    for name in names if architecture.scaled else ():
        if name not in weights:
            raise ModelError(f"{weights.path} has no tensor '{name}'; download the model again.")


def _check_layers(file: GgufFile, layers: int) -> None:
    """Checks that each layer has the tensors that layer 0 has.

    Raises:
        ModelError: A layer lacks a tensor that layer 0 has.
    """
    parts: dict[str, set[str]] = {}
    for name in file.tensors:
        layer, _, part = name.removeprefix("blk.").partition(".")
        parts.setdefault(layer, set()).add(part)
    first = parts.get("0", set())
    for number in range(1, layers):
        if missing := first - parts.get(str(number), set()):
            raise ModelError(
                f"{file.path} has no tensor 'blk.{number}.{min(missing)}', which its layer 0 has; "
                "download the model again."
            )


def _windows(keys: DecoderKeys, architecture: Architecture, layers: int) -> tuple[int, ...]:
    """Returns the number of preceding keys that a token attends to, by layer.

    Returns:
        An entry per layer, -1 for a layer that attends to all keys; () if no layer has a window.
    """
    period, pattern = architecture.windows, "attention.sliding_window_pattern"
    if period is None:
        return ()
    window = keys.integer("attention.sliding_window", architecture.window, least=0)
    if not window:
        return ()
    if isinstance(keys.metadata.get(keys.key(pattern)), np.ndarray):
        flags = keys.metadata.numbers(keys.key(pattern))
        if len(flags) < layers:
            raise keys.wrong(pattern, f"an array of {layers}", f"one of {len(flags)}")
        windowed = [bool(flag) for flag in flags[:layers]]
    else:
        period = keys.integer(pattern, period, least=0)
        windowed = [not period or layer % period < period - 1 for layer in range(layers)]
    return tuple(window - 1 if one else -1 for one in windowed)


def _rotaries(
    keys: DecoderKeys,
    architecture: Architecture,
    weights: GgufWeights,
    windows: tuple[int, ...],
    head_size: int,
    context: int,
) -> tuple[RopeConfig | None, ...]:
    """Returns the rotary embedding (RoPE) of each layer.

    Args:
        windows: Number of preceding keys that a token attends to, by layer, -1 for all; () if all
            layers attend to all.
        context: Requested context length in tokens.

    Returns:
        An entry per layer, None for a layer without RoPE; () if no layer has RoPE. Layers with a
        window share an object, and so do those without.
    """
    rope_layers = architecture.rope_layers(keys, keys.integer("block_count", most=MAX_LAYERS))
    if architecture.rotary == "none" or not any(rope_layers):
        return ()
    interleaved = architecture.rotary == "interleaved"
    local: RopeConfig | None = gguf_rotary(
        keys, weights, head_size, context, interleaved=interleaved
    )
    full = None if architecture.local_only else local
    if windows and not architecture.local_scaled:
        local = gguf_local_rotary(keys, head_size, context, architecture.local_base)
    kinds = zip(windows or (-1,) * len(rope_layers), rope_layers, strict=True)
    return tuple((local if window >= 0 else full) if turn else None for window, turn in kinds)
