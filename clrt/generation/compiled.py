"""Compiled files of language models: optimized graph, tokenizer, options and chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from clrt.errors import ClrtError, InputError, ModelError, explain_missing_extra
from clrt.formats.safetensors import damaged
from clrt.generation.chat_template import ChatTemplate
from clrt.generation.model_spec import LanguageModel
from clrt.generation.options import Sampling
from clrt.ir.graph import Graph
from clrt.models.compiled import CompiledModel, write_compiled
from clrt.models.compiled_file import extras_of, open_compiled, read_extras
from clrt.models.decoders.decoder import DecoderConfig
from clrt.ops.attention.page_layout import PAGE_TOKENS
from clrt.ops.attention.paged_cache import MAX_SLABS
from clrt.plan.weight_forms import packed_weights
from clrt.runtime.model.model import Model, load

_EXTRA = "generation"
# Fields of a decoder's configuration that the graph does not hold.
_SIZES = ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_size")
_STRING_KEYS = ("name", "family", "cache", "fingerprint", "tokenizer")
_INT_KEYS = (*_SIZES, "context", "page")
MAX_CONTEXT = 1 << 24
"""Maximum context that may be requested, in tokens."""
_ENCODER_SIZES = (*_SIZES, "context", "places", "features", "stride")


def is_compiled_language_model(path: Path) -> bool:
    """Whether a compiled file holds a language model.

    Raises:
        ModelError: The file is damaged, or not a compiled model.
    """
    return _EXTRA in read_extras(path)


def write_language_model(model: LanguageModel, path: Path, cache: str, producer: str) -> None:
    """Writes a language model to a compiled file, with weights packed for the process's device.

    Args:
        model: The model, with its graph.
        path: File to write.
        cache: Dtype of the KV cache: "float32", "float16" or "int8".
        producer: Name of the writing program.

    Raises:
        InputError: The file cannot be written.
    """
    assert isinstance(model.graph, Graph)
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
    write_decoder(model.graph, _EXTRA, extras, path, producer)


def write_decoder(
    graph: Graph, name: str, extras: Mapping[str, Any], path: Path, producer: str
) -> None:
    """Writes the graph of a decoder to a compiled file, with weights packed for the device.

    Args:
        graph: Graph of `clrt.models.decoders.graph`.
        name: Key under which the file stores `extras`.
        extras: JSON data to store beside the graph.
        path: File to write.
        producer: Name of the writing program.

    Raises:
        InputError: The file cannot be written.
    """
    with load(graph) as loaded:
        plan = loaded.plan(step_shapes(loaded, 1, 1))
        optimised = loaded.graph
        packed = packed_weights([plan])
    write_compiled(CompiledModel(optimised, (), {name: extras}), path, producer, packed)


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


def read_compiled_language_model(path: Path, context: int | None, cache: str) -> LanguageModel:
    """Reads a language model that `write_language_model` has written, without its graph.

    Args:
        path: File to read.
        context: Maximum number of tokens of a sequence; None for the model's own.
        cache: Expected dtype of the KV cache: "float32", "float16" or "int8".

    Returns:
        The model. Its field `graph` holds the header of the file, from which the graph and the
        weights are read later.

    Raises:
        ModelError: The file is damaged, or not a language model.
        InputError: The context is too large, or the file has a cache of another dtype.
    """
    with explain_missing_extra("Text generation"):
        from clrt.models.tokenizers.checked_tokenizer import load_tokenizer
    header = open_compiled(path)
    extras = extras_of(header).get(_EXTRA)
    if not isinstance(extras, dict):
        raise ModelError(f"{path} is not a language model; create one by clrt-convert.")
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
        tokenizer = load_tokenizer(extras["tokenizer"], path).library
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
    template = None
    if isinstance(extras.get("template"), str):
        names = _texts_of(extras.get("special_tokens"))
        template = partial(ChatTemplate, extras["template"], names, str(path))
    return LanguageModel(
        extras["name"],
        header,
        decoder,
        extras["fingerprint"],
        max_context,
        decoder.vocabulary,
        tokenizer,
        ends,
        sampling,
        template,
        start,
        str(extras.get("refusal", "")),
    )


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


def step_shapes(model: Model, tokens: int, rows: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a decoder step's inputs by name, to plan the step.

    The KV cache has one page; sizes besides `tokens` and `rows` are 1.

    Args:
        model: Decoder on a device.
        tokens: Number of input tokens.
        rows: Number of output rows.
    """
    sizes = {"tokens": tokens, "rows": rows, "pages0": 1, "sequences": 1, "pages": 1}
    sizes |= dict.fromkeys((f"pages{s}" for s in range(1, MAX_SLABS)), 0)
    sizes |= {"history": 1, "biases": 1, "batch": 1, "places": 1}
    shapes = {}
    for spec in model.inputs:
        assert spec.shape is not None
        shapes[spec.name] = tuple(d if isinstance(d, int) else _size(d, sizes) for d in spec.shape)
    return shapes


def _size(dim: str, sizes: Mapping[str, int]) -> int:
    """Evaluates a symbolic dim such as `places` or `2*places`, given the sizes of its symbols."""
    factor, _, name = dim.rpartition("*")
    return int(factor or 1) * sizes[name]


def _changed(sampling: Sampling) -> dict[str, Any]:
    """Returns the sampling options that differ from the defaults of `Sampling`, by name."""
    usual = replace(Sampling())
    pairs = {f.name: getattr(sampling, f.name) for f in fields(sampling)}
    return {n: v for n, v in pairs.items() if v != getattr(usual, n)}


def _texts_of(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, str)}
