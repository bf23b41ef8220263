"""Settings of language models as JSON: all that a model has besides its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clrt.errors import ClrtError, InputError, ModelError, explain_missing_extra
from clrt.formats.safetensors import SafetensorsHeader, damaged
from clrt.generation.chat_template import ChatTemplate
from clrt.generation.model_spec import LanguageModel
from clrt.generation.options import Sampling, whole_number
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.models.decoders.decoder import DecoderConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Fields of a decoder's configuration that the graph does not hold.
_SIZES = ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_size")
_STRING_KEYS = ("name", "family", "cache", "fingerprint", "tokenizer")
_INT_KEYS = (*_SIZES, "context", "page")
CACHES = {"float32": DType.FLOAT32, "float16": DType.FLOAT16, "int8": DType.UINT8}
"""Dtypes of the KV cache by name; int8 values are stored with their scales as bytes."""
MAX_CONTEXT = 1 << 24
"""Maximum context that may be requested, in tokens."""
_ENCODER_SIZES = (*_SIZES, "context", "places", "features", "stride")


def check_options(source: Path, context: int | None, cache: str) -> int | None:
    """Checks options with which a language model is read; returns `context` as an int.

    Args:
        source: File or folder of the model.
        context: Maximum number of tokens of a sequence; None for the model's own.
        cache: Dtype of the KV cache, a key of `CACHES`.

    Raises:
        ModelError: The source is missing.
        InputError: An option has no valid value.
    """
    if cache not in CACHES:
        raise InputError(f"cache is {cache!r}; expected one of {', '.join(CACHES)}.")
    if context is not None:
        context = whole_number("context", context, MAX_CONTEXT)
    try:
        source.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"'{source}' cannot be read: {reason}.") from error
    return context


def settings_of(model: LanguageModel, cache: str) -> dict[str, Any]:
    """Returns the settings of a model, from which `model_of_settings` recreates it.

    Args:
        cache: Dtype of the KV cache: "float32", "float16" or "int8".

    Raises:
        ClrtError: The chat template is invalid, or Jinja is not installed.
    """
    decoder = model.decoder
    extras: dict[str, Any] = {n: getattr(decoder, n) for n in (*_SIZES, "family")}
    extras |= {
        "name": model.name,
        "context": min(model.context, MAX_CONTEXT),
        "page": PAGE_TOKENS,
        "cache": cache,
    }
    extras |= {"places": decoder.places, "long_beyond": decoder.long_beyond}
    extras |= {"fingerprint": model.fingerprint, "tokenizer": model.tokenizer.to_str()}
    extras |= {"ends": sorted(model.ends), "sampling": _changed(model.sampling)}
    extras |= {"refusal": model.refusal} if model.refusal else {}
    if decoder.encoder is not None:
        extras |= {"start": list(model.start), "encoder": sizes_of(decoder.encoder)}
    if model.template is not None:
        chat_template = model.chat_template
        extras |= {"template": chat_template.source, "special_tokens": chat_template.special_tokens}
        if chat_template.tool_source != chat_template.source:
            extras["tool_template"] = chat_template.tool_source
    return extras


def model_of_settings(
    extras: Mapping[str, Any],
    graph: Graph | SafetensorsHeader,
    path: Path,
    context: int | None,
    cache: str,
    load_tokenizer: Callable[[], Tokenizer] | None = None,
) -> LanguageModel:
    """Returns the model whose settings `settings_of` has returned.

    Args:
        extras: The settings, as read from a file.
        graph: Graph of the model, the recipe of one, or the header of its compiled file.
        path: File that the settings come from, for error messages.
        context: Maximum number of tokens of a sequence; None for the model's own.
        cache: Expected dtype of the KV cache: "float32", "float16" or "int8".
        load_tokenizer: Returns the tokenizer; None to build it from the settings now.

    Raises:
        ModelError: The settings are damaged.
        InputError: The context is too large, or the settings have a cache of another dtype.
    """
    texts, numbers = {n: extras.get(n) for n in _STRING_KEYS}, {n: extras.get(n) for n in _INT_KEYS}
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers.values())
    whole = whole and extras["context"] <= MAX_CONTEXT
    if not all(isinstance(t, str) for t in texts.values()) or not whole:
        raise damaged(path, "its generation settings are missing or out of range")
    if extras["page"] != PAGE_TOKENS:
        raise ModelError(f"{path} has pages of {extras['page']} tokens; convert the model again.")
    if cache != extras["cache"]:
        raise InputError(f"{path} has a cache of {extras['cache']}, not {cache}; convert it again.")
    places, long_beyond = extras.get("places"), extras.get("long_beyond", 0)
    if type(long_beyond) is not int or not 0 <= long_beyond < 1 << 31:
        raise damaged(path, f"its long_beyond is {str(long_beyond)[:20]}")
    if context is not None and isinstance(places, int) and 0 < places < context:
        raise InputError(f"context is {context}; the model has positions 1 to {places}.")
    try:
        if load_tokenizer is None:
            load_tokenizer = _tokenizer_of(extras["tokenizer"], path)
        sampling = Sampling(**extras.get("sampling", {}))
        ends = frozenset(map(int, extras.get("ends", ())))
        start = tuple(map(int, extras.get("start", ())))
    except ClrtError:
        raise
    except Exception as error:  # tokenizers raises no narrower type
        raise damaged(path, f"its generation settings cannot be read, {error}") from error
    sizes = {n: extras[n] for n in (*_SIZES, "family")}
    max_context = extras["context"] if context is None else context
    encoder = _encoder(path, extras, context)
    # The file holds the built graph: fields that only graph construction needs keep their defaults.
    sizes |= {"long_beyond": long_beyond}
    decoder = DecoderConfig(**sizes, intermediate=0, context=max_context, encoder=encoder)
    if encoder is not None and not (start and 0 <= min(start) <= max(start) < decoder.vocabulary):
        raise damaged(path, f"its texts begin with tokens {list(start)}")
    has_template = isinstance(extras.get("template"), str)
    return LanguageModel(
        extras["name"],
        graph,
        decoder,
        extras["fingerprint"],
        max_context,
        decoder.vocabulary,
        load_tokenizer,
        ends,
        sampling,
        partial(_template, extras, str(path)) if has_template else None,
        start,
        str(extras.get("refusal", "")),
    )


def _tokenizer_of(text: str, path: Path) -> Callable[[], Tokenizer]:
    with explain_missing_extra("Text generation"):
        from clrt.models.tokenizers.checked_tokenizer import load_tokenizer
    tokenizer = load_tokenizer(text, path).library
    return lambda: tokenizer


def _template(extras: Mapping[str, Any], origin: str) -> ChatTemplate:
    """Returns the chat template of settings.

    Args:
        origin: Name of the template in error messages.
    """
    names, for_tools = _texts_of(extras.get("special_tokens")), extras.get("tool_template")
    tools = ChatTemplate(for_tools, names, origin) if isinstance(for_tools, str) else None
    return ChatTemplate(extras["template"], names, origin, tools)


def _encoder(path: Path, extras: Mapping[str, Any], context: int | None) -> DecoderConfig | None:
    """Returns the encoder's configuration from a compiled file; None for a decoder-only model.

    Args:
        path: The file, for error messages.
        extras: JSON data of the file, not yet checked.
        context: Maximum number of encoder positions, ignored if the encoder has learned position
            embeddings; None for the value in the file.

    Raises:
        ModelError: The file is damaged.
    """
    if "encoder" not in extras:
        return None
    encoder = decoder_of(path, extras["encoder"], extras["family"])
    return (
        replace(encoder, context=context) if context is not None and not encoder.places else encoder
    )


def sizes_of(decoder: DecoderConfig) -> dict[str, int]:
    """Returns the sizes of a model's encoder or decoder, from which `decoder_of` recreates it."""
    return {name: getattr(decoder, name) for name in _ENCODER_SIZES}


def decoder_of(
    path: Path, told: object, family: str, encoder: DecoderConfig | None = None
) -> DecoderConfig:
    """Creates the configuration of an encoder or decoder from sizes stored in a file.

    Args:
        path: File that the sizes come from, for error messages.
        told: Result of `sizes_of`, read from the file and not yet checked.
        family: Model family.
        encoder: Configuration of the decoder's encoder; None for a decoder-only model, and to
            create the configuration of an encoder.

    Raises:
        ModelError: The file is damaged.
    """
    sizes: dict[str, Any] = {}
    if isinstance(told, Mapping):
        sizes = {n: told.get(n) for n in _ENCODER_SIZES}
    may_be_0 = ("places", "features", "vocabulary")
    whole = all(
        isinstance(n, int) and not isinstance(n, bool) and n >= int(name not in may_be_0)
        for name, n in sizes.items()
    )
    if not sizes or not whole or sizes["context"] > MAX_CONTEXT:
        raise damaged(path, "its model sizes are missing or out of range")
    return DecoderConfig(family, intermediate=0, **sizes, encoder=encoder)


def _changed(sampling: Sampling) -> dict[str, Any]:
    """Returns the sampling options that differ from the defaults of `Sampling`, by name."""
    usual = replace(Sampling())
    pairs = {f.name: getattr(sampling, f.name) for f in fields(sampling)}
    return {n: v for n, v in pairs.items() if v != getattr(usual, n)}


def _texts_of(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, str)}
