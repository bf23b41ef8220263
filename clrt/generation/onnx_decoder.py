"""Reads language models from ONNX files of onnxruntime-genai's builder and of optimum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clrt.errors import InputError, ModelError, explain_missing_extra
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.node_errors import NodeErrorContext
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.paging.rewrite import page_decoder
from clrt.models.decoders.paging.visibility import MOST_KEYS
from clrt.models.huggingface.model_files import file_exists, path_in, read_optional

GENAI = "genai_config.json"
_FILES = ("model.onnx", "onnx/model.onnx")
# Keys of config.json for the context and the head size, over all families.
_CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_HEAD_SIZES = ("head_dim", "head_size")
_WIDTHS, _HEADS = ("hidden_size", "n_embd", "d_model"), ("num_attention_heads", "n_head", "n_heads")


def find_onnx(source: Path) -> Path | None:
    """Returns the ONNX file of a language model: `source`, or a file in the folder `source`.

    The file that genai_config.json names has precedence. If it names none, the result is None for a
    folder with safetensors files, or without an ONNX file of a usual name.

    Raises:
        ModelError: genai_config.json names no .onnx file, or one outside the folder.
    """
    if source.suffix == ".onnx" and not source.is_dir():
        return source
    model = read_optional(source / GENAI).get("model")
    if model is not None:
        name = _config_object(_config_object(model, source), source, "decoder").get("filename")
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".onnx"):
            raise ModelError(
                f"'{source / GENAI}' names {name!r} as the file of the decoder; expected the name "
                "of a file beside it that ends with .onnx."
            )
        return path_in(source, name)
    if any(source.glob("*.safetensors")):
        return None
    return next((path_in(source, n) for n in _FILES if file_exists(source / n)), None)


def folder_of(file: Path) -> Path:
    """Returns the folder with the config.json of an ONNX file: the file's folder, or its parent."""
    above = file.parent.parent
    config = file.parent / "config.json"
    return above if not file_exists(config) and file_exists(above / "config.json") else file.parent


def read_onnx_decoder(
    source: Path, context: int | None = None, cache: DType = DType.FLOAT32
) -> tuple[Graph, DecoderConfig]:
    """Reads a decoder from ONNX and replaces its inputs of past keys and values by a KV cache.

    Args:
        source: An ONNX file, or its folder, with genai_config.json or config.json.
        context: Maximum number of tokens of a sequence; None for the value in the files.
        cache: Dtype of the KV cache.

    Returns:
        The graph, and the configuration of the decoder.

    Raises:
        ModelError: A file is missing or damaged.
        UnsupportedError: The model is not a decoder with past keys and values as inputs, or cannot
            be rewritten to KV pages (`clrt.models.decoders.paging`).
        InputError: `context` is None, and the files do not state it.
    """
    file = find_onnx(source)
    if file is None:
        raise ModelError(f"'{source}' has no ONNX file; give the path of one.")
    folder = folder_of(file)
    with explain_missing_extra("An ONNX model"):
        from clrt.models.decoders.onnx import import_decoder
    with NodeErrorContext(f"'{file}'"):
        graph, names = import_decoder(file, _head_size(folder))
        recorded = _first(folder, ("context_length",), _CONTEXTS)
        max_context = context or recorded
        paged = page_decoder(graph, names, cache, max_context or MOST_KEYS)
    if paged.places is not None and context is None:
        max_context = min(max_context or paged.places, paged.places)
    if max_context is None:
        raise InputError(
            f"No file beside '{file}' gives the maximum number of tokens of a text; give `context`."
        )
    decoder = DecoderConfig(
        family=_family(folder),
        vocabulary=paged.vocabulary,
        hidden=paged.hidden,
        layers=paged.layers,
        heads=paged.heads,
        kv_heads=paged.kv_heads,
        head_size=paged.head_size,
        intermediate=0,
        context=max_context,
        places=paged.places or 0,
        long_beyond=paged.long_beyond,
    )
    return paged.graph, decoder


def _family(folder: Path) -> str:
    """Returns the model type in genai_config.json or config.json; "onnx" if there is none."""
    for _, where, names in _objects(folder, ("type",), ("model_type",)):
        if isinstance(model_type := where.get(names[0]), str):
            return model_type
    return "onnx"


def _head_size(folder: Path) -> int | None:
    head_size = _first(folder, ("decoder.head_size",), _HEAD_SIZES)
    if head_size is not None:
        return head_size
    width, heads = (_first(folder, (), names) for names in (_WIDTHS, _HEADS))
    return width // heads if width and heads else None


def _first(folder: Path, genai: tuple[str, ...], config: tuple[str, ...]) -> int | None:
    """Returns the first integer that a folder's configuration has for one of several keys.

    Args:
        folder: Folder of the model.
        genai: Keys to look for in object `model` of genai_config.json; "a.b" is a nested key.
        config: Keys to look for in config.json.

    Returns:
        The value; None if no file has any of the keys.

    Raises:
        ModelError: The value is not an integer from 1 to 2**31 - 1.
    """
    for file, where, names in _objects(folder, genai, config):
        for name in names:
            value: Any = where
            for key in name.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
                raise ModelError(
                    f"'{file}' has {name} {value!r}; expected a whole number from 1 on."
                )
            return value
    return None


def _objects(
    folder: Path, genai: tuple[str, ...], config: tuple[str, ...]
) -> Iterator[tuple[Path, Mapping[str, Any], tuple[str, ...]]]:
    """Yields the configuration objects of a model folder in order of precedence.

    Args:
        folder: Folder of the model.
        genai: Keys to look for in genai_config.json.
        config: Keys to look for in config.json.

    Yields:
        (file, object in the file that may describe the decoder, keys to look for in the object).
    """
    model = read_optional(folder / GENAI).get("model")
    if model is not None:
        yield folder / GENAI, _config_object(model, folder), genai
    config_json = read_optional(folder / "config.json")
    inner = config_json.get("text_config")
    for one in (config_json, inner):
        if isinstance(one, Mapping):
            yield folder / "config.json", one, config


def _config_object(found: Any, folder: Path, name: str = "") -> Mapping[str, Any]:
    """Returns the object `found`, or its member `name` if that is not "".

    Args:
        found: Value of `model` in genai_config.json.
        folder: Folder of the file, for the error message.
        name: Name of a member of `found`.

    Raises:
        ModelError: The value is not a JSON object.
    """
    value = found.get(name) if name else found
    if not isinstance(value, Mapping):
        where = f"model.{name}" if name else "model"
        raise ModelError(f"'{folder / GENAI}' has {where} {value!r}; expected an object.")
    return value
