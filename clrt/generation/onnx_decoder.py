"""Language models from ONNX files: of onnxruntime-genai's builder, and of optimum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clrt.errors import InputError, ModelError, explain_missing_extra
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.paging.rewrite import page_decoder
from clrt.models.decoders.paging.visibility import MOST_KEYS
from clrt.models.huggingface.model_files import file_exists, path_in, read_optional
from clrt.ops.node_errors import NodeErrorContext

GENAI = "genai_config.json"
_FILES = ("model.onnx", "onnx/model.onnx")
# What config.json of one family or another calls the most places, and the elements of a head.
_CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_HEAD_SIZES = ("head_dim", "head_size")
_WIDTHS, _HEADS = ("hidden_size", "n_embd", "d_model"), ("num_attention_heads", "n_head", "n_heads")


def find_onnx(source: Path) -> Path | None:
    """The ONNX file of a language model; None where its folder has a checkpoint's weights.

    Raises:
        ModelError: The file that genai_config.json names has no place there.
    """
    if source.suffix == ".onnx" and not source.is_dir():
        return source
    model = read_optional(source / GENAI).get("model")
    if model is not None:
        name = _part(_part(model, source), source, "decoder").get("filename")
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
    """Where the files are that tell of an ONNX file; exporters put it into a folder of its own."""
    above = file.parent.parent
    own = file.parent / "config.json"
    return above if not file_exists(own) and file_exists(above / "config.json") else file.parent


def read_onnx_decoder(
    source: Path, context: int | None = None, cache: DType = DType.FLOAT32
) -> tuple[Graph, DecoderConfig]:
    """The graph of a decoder over a cache in pages, and the sizes that it shows.

    Args:
        source: An ONNX file, or the folder of one, with genai_config.json or config.json.
        context: The most tokens of a text; None for what the files say.
        cache: The dtype of the cache.

    Raises:
        ModelError: A file is missing or damaged.
        UnsupportedError: It is no decoder that is given its past, or does what has no form over
            pages (`clrt.models.decoders.paging`).
        InputError: Nothing says how many tokens a text may have.
    """
    file = find_onnx(source)
    if file is None:
        raise ModelError(f"'{source}' has no ONNX file; give the path of one.")
    folder = folder_of(file)
    with explain_missing_extra("An ONNX model"):
        from clrt.models.decoders.onnx import import_decoder
    with NodeErrorContext(f"'{file}'"):
        graph, names = import_decoder(file, _head_size(folder))
        told = _first(folder, ("context_length",), _CONTEXTS)
        most = context or told
        paged = page_decoder(graph, names, cache, most or MOST_KEYS)
    if paged.places is not None and context is None:
        most = min(most or paged.places, paged.places)
    if most is None:
        raise InputError(
            f"Nothing beside '{file}' says how many tokens a text may have; give `context`."
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
        context=most,
        places=paged.places or 0,
    )
    return paged.graph, decoder


def _family(folder: Path) -> str:
    """What the model's files call its type."""
    for _, where, names in _objects(folder, ("type",), ("model_type",)):
        if isinstance(found := where.get(names[0]), str):
            return found
    return "onnx"


def _head_size(folder: Path) -> int | None:
    found = _first(folder, ("decoder.head_size",), _HEAD_SIZES)
    if found is not None:
        return found
    width, heads = (_first(folder, (), names) for names in (_WIDTHS, _HEADS))
    return width // heads if width and heads else None


def _first(folder: Path, genai: tuple[str, ...], config: tuple[str, ...]) -> int | None:
    """The first whole number from 1 on of these names in the one file, then in the other.

    Raises:
        ModelError: It is none, or too large.
    """
    for file, where, names in _objects(folder, genai, config):
        for name in names:
            value: Any = where
            for key in name.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
                raise ModelError(f"'{file}' has {name} {value!r}; it is a whole number from 1 on.")
            return value
    return None


def _objects(
    folder: Path, genai: tuple[str, ...], config: tuple[str, ...]
) -> Iterator[tuple[Path, Mapping[str, Any], tuple[str, ...]]]:
    """The objects of both files that describe a decoder, and the names to be looked for there."""
    model = read_optional(folder / GENAI).get("model")
    if model is not None:
        yield folder / GENAI, _part(model, folder), genai
    found = read_optional(folder / "config.json")
    inner = found.get("text_config")
    for one in (found, inner):
        if isinstance(one, Mapping):
            yield folder / "config.json", one, config


def _part(found: Any, folder: Path, name: str = "") -> Mapping[str, Any]:
    """An object in genai_config.json, or one in that.

    Raises:
        ModelError: It is none.
    """
    value = found.get(name) if name else found
    if not isinstance(value, Mapping):
        where = f"model.{name}" if name else "model"
        raise ModelError(f"'{folder / GENAI}' has {where} {value!r}; expected an object.")
    return value
