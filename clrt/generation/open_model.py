"""Opens language models: with stored plans of an earlier process, else from their files alone."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from clrt.errors import explain_missing_extra
from clrt.formats.gguf.file import GGUF_SUFFIX, find_gguf, shards_of
from clrt.generation.compiled import read_compiled_language_model
from clrt.generation.model_settings import check_options, model_of_settings, settings_of
from clrt.generation.model_spec import LanguageModel
from clrt.ir.graph import Graph
from clrt.models.sources import is_compiled
from clrt.runtime.model.executable_store import MAX_CONSTANT_BYTES
from clrt.runtime.model.graph_recipe import GraphRecipe
from clrt.runtime.model.model import stored_texts
from clrt.runtime.opencl.devices import DeviceInfo, start_drivers
from clrt.util.background_call import BackgroundCall

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from clrt.generation.model_reader import AdapterPaths

# Files of a model folder that a language model is read from.
_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "additional_chat_templates/*.jinja")


def open_language_model(
    source: Path,
    context: int | None,
    cache: str,
    adapters: AdapterPaths,
    device: str | int | DeviceInfo | None,
    cache_dir: str | Path | None,
) -> LanguageModel:
    """Opens a language model to load on a device.

    If an earlier process has stored its plans, its graph is not built. Arguments and errors are
    those of `read_language_model`, and those of `clrt.load`.

    Args:
        source: File or folder of the model.
        context: Maximum number of tokens of a sequence; None for the model's own.
        cache: Dtype of the KV cache.
        adapters: LoRA adapters to merge into the weights, each with its factor.
        device: Device that the model is loaded on next.
        cache_dir: Folder for compiled programs.
    """
    start_drivers()  # they load in parallel with the model
    context = check_options(source, context, cache)
    if is_compiled(source) and not adapters:
        return read_compiled_language_model(source, context, cache)
    arguments = (source, context, cache, tuple(adapters))
    files, *more = (_model_files(path) for path in (source, *(path for path, _ in adapters)))
    chosen = [*files, *chain.from_iterable(more)]
    size = sum(file.stat().st_size for file in chosen)
    if not (files and all(more)) or size > MAX_CONSTANT_BYTES:
        return _read(*arguments)
    factors = [factor for _, factor in adapters]
    recipe = GraphRecipe(
        "clrt.generation.open_model:language_graph",
        arguments,
        repr((context, cache, factors)),
        chosen,
    )
    texts = stored_texts(recipe, device, cache_dir)
    if texts:
        tokenizer = BackgroundCall(partial(_tokenizer, texts["tokenizer"]), "clrt-tokenizer")
        settings = json.loads(texts["settings"]) | {"tokenizer": ""}
        model = model_of_settings(settings, recipe, source, None, cache, tokenizer)
        is_found = source.is_dir() and files[0].suffix == GGUF_SUFFIX
        return replace(model, name=files[0].name if is_found else source.name)
    model = _read(*arguments)
    recipe.provide(cast(Graph, model.graph))
    model = replace(model, graph=recipe)
    recipe.texts = partial(_texts_of, model, cache)
    return model


def _texts_of(model: LanguageModel, cache: str) -> dict[str, str]:
    """Returns the texts that are stored beside the plans of a model."""
    settings = settings_of(model, cache)
    tokenizer = _with_short_merges(settings.pop("tokenizer"))
    return {"settings": json.dumps(settings), "tokenizer": tokenizer}


def _with_short_merges(text: str) -> str:
    """Returns a tokenizer's JSON with each merge as one string, not a list of two: it loads faster.

    Returns `text` unchanged if the new JSON describes another tokenizer, as if tokens have spaces.
    """
    content = json.loads(text)
    merges = content["model"].get("merges") or ()
    if not all(isinstance(pair, list) for pair in merges):
        return text
    content["model"]["merges"] = [" ".join(pair) for pair in merges]
    short = json.dumps(content, ensure_ascii=False)
    try:
        return short if merges and _tokenizer(short).to_str() == text else text
    except Exception:  # tokenizers raises no narrower type
        return text


def language_graph(*arguments: Any) -> Graph:
    """Returns the graph of a language model; arguments are those of `read_language_model`."""
    return cast(Graph, _read(*arguments).graph)


def _read(*arguments: Any) -> LanguageModel:
    from clrt.generation.model_reader import read_language_model  # imports ops and passes

    return read_language_model(*arguments)


def _tokenizer(text: str) -> Tokenizer:
    """Returns a tokenizer whose JSON an earlier process has checked."""
    with explain_missing_extra("Text generation"):
        from tokenizers import Tokenizer
    return Tokenizer.from_str(text)


def _model_files(source: Path) -> list[Path]:
    """Returns the files that a language model is read from; [] if its plans are not stored.

    Plans are stored for GGUF files, folders with one GGUF model, and folders of safetensors, unless
    the folder describes an ONNX model.

    Args:
        source: File or folder of a model or of an adapter.
    """
    if not source.is_dir():
        return shards_of(source) if source.suffix == GGUF_SUFFIX else []
    if any(source.glob("*.safetensors")):
        found = {file for pattern in _PATTERNS for file in source.glob(pattern)}
        is_onnx = source / "genai_config.json" in found
        return sorted(filter(os.path.isfile, () if is_onnx else found))
    if any(source.glob("*.onnx")):  # which has precedence
        return []
    files = find_gguf(source)
    return shards_of(files[0]) if len(files) == 1 else []
