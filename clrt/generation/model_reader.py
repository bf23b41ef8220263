"""Reads language models: graph, tokenizer, sampling defaults and chat template."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from clrt.errors import InputError, ModelError, UnsupportedError, explain_missing_extra
from clrt.formats.gguf.file import find_gguf, read_gguf
from clrt.generation.chat_template import ChatTemplate, has_template
from clrt.generation.compiled import read_compiled_language_model
from clrt.generation.generation_config import read_proposed
from clrt.generation.model_settings import CACHES, check_options
from clrt.generation.model_spec import LanguageModel
from clrt.generation.onnx_decoder import find_onnx, folder_of, read_onnx_decoder
from clrt.generation.options import Sampling, eos_tokens, start_token
from clrt.ir.graph import Graph, Value
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.ir.node_errors import NodeErrorContext
from clrt.ir.op import Array, ConcatenatedRows
from clrt.models.decoders.adapters.base import AdaptedModel, adapted_folder, adapted_gguf
from clrt.models.decoders.adapters.merged_weights import AdaptedWeights, open_adapter
from clrt.models.decoders.adapters.peft_config import CONFIG as ADAPTER_CONFIG
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.gguf import read_gguf_decoder
from clrt.models.decoders.graph import decoder_graph
from clrt.models.decoders.huggingface import read_folder
from clrt.models.decoders.weight_source import WeightSource
from clrt.models.huggingface.model_files import file_exists, read_text
from clrt.models.sources import is_compiled
from clrt.runtime.opencl.devices import start_drivers
from clrt.util.files import check_link
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from clrt.models.tokenizers.gguf_tokenizer import GgufTokenizer

# Number of elements of each weight in a fingerprint: within a file page that is read anyway.
_FINGERPRINT_ELEMS = 64


AdapterPaths: TypeAlias = "Sequence[tuple[Path, float]]"


def read_language_model(
    source: Path, context: int | None, cache: str, adapters: AdapterPaths = ()
) -> LanguageModel:
    """Reads a language model from its files.

    Args:
        source: A Hugging Face folder, a GGUF file or a folder with one, an ONNX file with its
            folder (onnxruntime-genai's or optimum's), or clrt-convert's output for one of these.
        context: Maximum number of tokens of a sequence; None for the model's own. May exceed the
            model's own unless it has learned position embeddings.
        cache: Dtype of the KV cache, a key of `CACHES`.
        adapters: LoRA adapters to merge into the weights, each with its factor.

    Raises:
        ModelError: A file is missing or damaged, or an adapter belongs to another model.
        UnsupportedError: The model family is unknown, or the model's format takes no adapters.
        InputError: An option has no valid value, or a folder holds several models.
    """
    context = check_options(source, context, cache)
    start_drivers()  # they load in parallel with the model
    if is_compiled(source):
        if adapters:
            raise UnsupportedError(
                f"{source} is compiled, and compiled weights do not support adapters; convert the "
                "model again by clrt-convert with --lora."
            )
        return read_compiled_language_model(source, context, cache)
    if (file := find_onnx(source)) is None and (gguf_file := _gguf_file(source)) is not None:
        return _read_gguf_model(gguf_file, context, cache, adapters)
    more = b""
    if file is not None:
        if adapters:
            raise UnsupportedError(
                f"{file} is an ONNX file, which does not support adapters; merge them before the "
                "export, or load the folder that it was exported from."
            )
        graph, decoder = read_onnx_decoder(file, context, CACHES[cache])
        source = folder_of(file)
    else:
        _check_is_model(source)
        with NodeErrorContext(f"'{source}'"):
            decoder, weights = read_folder(source, context)
        graph, more = _graph(adapted_folder(source, decoder), weights, cache, adapters)
    _check_places(decoder)
    start = () if decoder.encoder is None else (_start(decoder, source),)
    tokenizer = read_tokenizer(source / "tokenizer.json")
    ends = frozenset(eos_tokens(source))
    proposed = read_proposed(source)
    return LanguageModel(
        source.name,
        graph,
        decoder,
        fingerprint_of(decoder, graph, cache, more),
        decoder.context,
        decoder.vocabulary,
        lambda: tokenizer,
        ends,
        Sampling.checked(proposed.options, proposed.file),
        partial(ChatTemplate.from_folder, source) if has_template(source) else None,
        start,
        proposed.refusal,
    )


def _start(decoder: DecoderConfig, source: Path) -> int:
    """Reads the start token of a model with an encoder from its folder.

    Raises:
        ModelError: The folder has no start token, or one without an embedding.
    """
    token = start_token(source)
    if token >= decoder.vocabulary:
        raise ModelError(
            f"'{source}' begins texts with token {token}; the model has embeddings of 0 to "
            f"{decoder.vocabulary - 1}."
        )
    return token


def _check_is_model(source: Path) -> None:
    """Checks that a folder holds a model, not only a LoRA adapter.

    Raises:
        ModelError: The folder holds an adapter, but no config.json.
    """
    if file_exists(source / ADAPTER_CONFIG) and not file_exists(source / "config.json"):
        raise ModelError(
            f"{source} is a LoRA adapter, not a model; give its base model, and the adapter as "
            "`lora` or --lora."
        )


def _graph(
    model: AdaptedModel, weights: WeightSource, cache: str, adapters: AdapterPaths
) -> tuple[Graph, bytes]:
    """Builds the graph of a decoder, with LoRA adapters merged into its weights.

    Args:
        model: Path and configuration of the model.
        weights: Weights of the model.
        cache: Dtype of the KV cache, a key of `CACHES`.
        adapters: Path and factor of each LoRA adapter; () for none.

    Returns:
        The graph, and the digest of the adapters, b"" if there are none.
    """
    dtype = CACHES[cache]
    if not adapters:
        with NodeErrorContext(f"'{model.path}'"):
            return decoder_graph(model.decoder, weights, dtype), b""
    opened = [(factor, open_adapter(path, model)) for path, factor in adapters]
    adapted = AdaptedWeights(weights, opened)
    with NodeErrorContext(f"'{model.path}' with its adapters"):
        graph = decoder_graph(model.decoder, adapted, dtype)
    adapted.check_all_used()
    return graph, adapted.digest()


def fingerprint_of(decoder: DecoderConfig, graph: Graph, cache: str, more: bytes = b"") -> str:
    """Returns a hex digest that differs between models whose KV caches differ.

    The digest covers sizes of the model, and the first 64 elements of each weight that has so many.

    Args:
        decoder: Configuration of the decoder.
        graph: Graph before any pass.
        cache: Dtype of the KV cache, a key of `CACHES`.
        more: Digest of the adapters, which may leave the first elements unchanged.
    """
    sizes = [decoder.family, decoder.layers, decoder.kv_heads, decoder.head_size]
    sizes += [decoder.long_beyond] if decoder.long_beyond else []
    digest = hashlib.blake2b(repr((*sizes, cache, PAGE_TOKENS)).encode() + more, digest_size=16)
    seen = set()
    for value in (v for node in graph.nodes for v in node.inputs):
        if value is None or value.name in seen or not value.type.has_numbers:
            continue
        seen.add(value.name)
        if prod(value.dims) >= _FINGERPRINT_ELEMS:
            numbers = _first(value)
            digest.update(repr((value.name, value.dims, str(numbers.dtype))).encode())
            digest.update(numbers.tobytes())
    return digest.hexdigest()


def _first(value: Value) -> Array:
    """Returns the first 64 elements of a weight, without concatenating a weight stored in parts."""
    known = value.type.known_elements
    if isinstance(known, ConcatenatedRows):
        data = known.rows(0, ceil_div(_FINGERPRINT_ELEMS, prod(known.shape[1:])))
    else:
        assert value.type.data is not None
        data = value.type.data
    return data.flat[:_FINGERPRINT_ELEMS]


def _gguf_file(source: Path) -> Path | None:
    """Returns the GGUF file in a folder; returns a path to a file unchanged, in any format.

    None for a folder without GGUF or with safetensors, and for a missing file without the suffix
    .gguf.

    Raises:
        InputError: The folder has several GGUF models.
    """
    if not source.is_dir():
        return source if source.is_file() or source.suffix == ".gguf" else None
    files = [] if any(source.glob("*.safetensors")) else find_gguf(source)
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:8])
        raise InputError(f"'{source}' holds {len(files)} GGUF models ({names}); name one of them.")
    for file in files:
        check_link(file, source)
    return files[0] if files else None


def _read_gguf_model(
    path: Path, context: int | None, cache: str, adapters: AdapterPaths
) -> LanguageModel:
    with explain_missing_extra("Text generation"):
        from clrt.models.tokenizers.gguf_tokenizer import read_tokenizer as read_gguf_tokenizer
    file = read_gguf(path)
    if file.metadata.text("general.type", "model") == "adapter":
        raise ModelError(
            f"{path} is an adapter, not a model; give its base model, and the adapter as "
            "`lora` or --lora."
        )
    with NodeErrorContext(f"'{path}'"):
        decoder, weights = read_gguf_decoder(file, context)
    graph, more = _graph(adapted_gguf(file, decoder), weights, cache, adapters)
    with NodeErrorContext(f"'{path}'"):
        weights.check_all_read()
    _check_places(decoder)
    tokenizer = read_gguf_tokenizer(file.metadata)
    if (tokens := tokenizer.library.get_vocab_size()) > decoder.vocabulary:
        raise ModelError(
            f"{path} has {tokens} tokens and embeddings of {decoder.vocabulary}; download it again."
        )
    return LanguageModel(
        name=path.name,
        graph=graph,
        decoder=decoder,
        fingerprint=fingerprint_of(decoder, graph, cache, more),
        context=decoder.context,
        vocabulary=decoder.vocabulary,
        load_tokenizer=lambda: tokenizer.library,
        ends=tokenizer.end_ids,
        sampling=Sampling.from_gguf(file.metadata),
        template=_gguf_template(tokenizer, path),
    )


def _gguf_template(tokenizer: GgufTokenizer, path: Path) -> Callable[[], ChatTemplate] | None:
    if tokenizer.chat_template is None:
        return None
    ids = {
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "unk": tokenizer.unk_id,
        "pad": tokenizer.pad_id,
    }
    texts = {n: tokenizer.library.id_to_token(i) for n, i in ids.items() if i is not None}
    tokens = {f"{name}_token": text for name, text in texts.items() if text is not None}
    return partial(ChatTemplate, tokenizer.chat_template, tokens, f"The chat template of '{path}'")


def _check_places(decoder: DecoderConfig) -> None:
    """Checks that the context does not exceed the number of learned position embeddings, if any.

    Raises:
        InputError: The context exceeds the number of position embeddings.
    """
    if decoder.places and decoder.context > decoder.places:
        raise InputError(
            f"context is {decoder.context}; the model has positions 1 to {decoder.places}."
        )


def read_tokenizer(file: Path) -> Tokenizer:
    """Reads a tokenizer.json, with truncation and padding disabled.

    Raises:
        ModelError: The file is missing or damaged.
    """
    with explain_missing_extra("Text generation"):
        from clrt.models.tokenizers.checked_tokenizer import load_tokenizer
    text = read_text(file)
    tokenizer = load_tokenizer(text, file).library
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
