"""Reads model files, bytes and folders into graphs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from clrt.errors import ModelError, UnsupportedError, explain_missing_extra
from clrt.ir.graph import Graph
from clrt.models.compiled import SUFFIX, read_compiled
from clrt.ops.node_errors import NodeErrorContext
from clrt.util.files import check_link

if TYPE_CHECKING:
    import onnx

Source: TypeAlias = "str | Path | bytes | onnx.ModelProto | Graph"

# Paths of the ONNX file in a folder, best first.
_ONNX_FILES = ("onnx/model.onnx", "model.onnx")


def read_graph(source: Source) -> Graph:
    """Returns the graph of a model before any pass; a compiled model's is already optimised.

    Raises:
        ModelError, UnsupportedError: As `load`.
    """
    if isinstance(source, Graph):
        return source.copy()
    if is_compiled(source):
        compiled = read_compiled(Path(source))
        compiled.check()
        return compiled.graph
    if not isinstance(source, (str, Path)):
        return _import_onnx(source)
    with NodeErrorContext(f"'{source}'"):
        file = onnx_file(source)
        if file is None or file.suffix == ".gguf":
            _check_is_one_graph(Path(source))
        return _import_folder(Path(source)) if file is None else _import_onnx(file)


def onnx_file(source: str | Path) -> Path | None:
    """Returns the ONNX file at a path; None for a folder that only has safetensors weights.

    Raises:
        ModelError: A folder has no safetensors weights, and ONNX files of other names only.
    """
    if not os.path.isdir(source):  # Path.is_dir raises for some paths
        return Path(source)
    folder = _transformer_folder(Path(source))
    for name in _ONNX_FILES:
        if (folder / name).is_file():
            check_link(folder / name, Path(source))
            return folder / name
    others = [f for pattern in ("onnx/*.onnx", "*.onnx") for f in sorted(folder.glob(pattern))]
    if others and not any(folder.glob("*.safetensors")):
        listing = ", ".join(map(str, others))
        raise ModelError(f"'{folder}' has no model.onnx but {listing}; give the path of one.")
    return None


def model_files(source: Path) -> list[Path]:
    """Returns the files that a model is read from; the file itself if `source` is a file."""
    if not source.is_dir():
        return [source]
    folder = _transformer_folder(source)
    names = (*_ONNX_FILES, "config.json", "tokenizer*.json", "model*.safetensors*")
    return [file for name in names for file in folder.glob(name)]


def _transformer_folder(folder: Path) -> Path:
    """Returns the folder of the transformer: 0_Transformer in old sentence-transformers folders."""
    inner = folder / "0_Transformer"
    if not (inner / "config.json").is_file():
        return folder
    check_link(inner, folder)
    return inner


# The importers are imported on first use, to keep start-up short.


def _import_onnx(source: Path | bytes | onnx.ModelProto) -> Graph:
    with explain_missing_extra("An ONNX model"):
        from clrt.models.onnx.importer import import_model

    return import_model(source)


def _import_folder(folder: Path) -> Graph:
    from clrt.models.encoders.checkpoint_graph import import_checkpoint
    from clrt.models.encoders.sentence_folder import import_sentence_folder

    inner = _transformer_folder(folder)
    graph = import_sentence_folder(inner) if _makes_vectors(inner) else None
    return import_checkpoint(inner) if graph is None else graph


def _check_is_one_graph(source: Path) -> None:
    """Raises if the source is a language or speech model, which is several graphs and a loop.

    Raises:
        UnsupportedError: It is one; the message names the class and commands that run it.
        ModelError: Its config.json cannot be read.
    """
    from clrt.models.decoders.families import COMPOSITE_MODELS, FAMILIES
    from clrt.models.huggingface.model_files import read_optional

    if source.suffix != ".gguf":
        if _makes_vectors(source):
            return
        kind = str(read_optional(source / "config.json").get("model_type"))
        if kind == "whisper":
            raise UnsupportedError(
                f"'{source}' is a speech model ({kind}); clrt.Transcriber runs it, and the command "
                "`clrt transcribe --model`."
            )
        known = kind in {*FAMILIES, *COMPOSITE_MODELS}
        if not (known or (kind == "None" and any(source.glob("*.gguf")))):
            return
    raise UnsupportedError(
        f"'{source}' is a language model; clrt.TextGenerator runs it, and the commands "
        "`clrt generate` and `clrt chat`; `clrt bench --generate` measures it."
    )


def _makes_vectors(folder: Path) -> bool:
    """Returns whether a folder belongs to a sentence-transformers model (has a modules.json)."""
    return any((f / "modules.json").is_file() for f in (folder, folder.parent))


def is_compiled(source: Source) -> TypeGuard[str | Path]:
    """Returns whether a source is the path of a compiled model (an optimised graph)."""
    return isinstance(source, (str, Path)) and Path(source).suffix == SUFFIX
