"""Reads model files, bytes and folders into graphs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from clrt.errors import ModelError, UnsupportedError, explain_missing_extra
from clrt.ir.graph import Graph
from clrt.ir.node_errors import NodeErrorContext
from clrt.models.compiled_file import SUFFIX
from clrt.util.files import check_link

if TYPE_CHECKING:
    import onnx

Source: TypeAlias = "str | Path | bytes | onnx.ModelProto | Graph"

# Paths of the ONNX file in a folder, best first.
_ONNX_FILES = ("onnx/model.onnx", "model.onnx")


def read_graph(source: Source) -> Graph:
    """Reads a model as a graph before any pass; the graph of a compiled model is optimised already.

    Args:
        source: An ONNX file, its bytes or ModelProto; a model folder; a compiled model; or a graph,
            which is copied.

    Raises:
        ModelError: A file is missing, damaged or not valid.
        UnsupportedError: clrt cannot run the model, or it is a language or speech model.
    """
    if isinstance(source, Graph):
        graph = source.copy()
        graph.defaults = graph.defaults or source.defaults
        return graph
    if is_compiled(source):
        from clrt.models.compiled import read_compiled

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
    """Returns the ONNX file of a model; None for a folder without model.onnx.

    Args:
        source: A file, which is returned unchecked; or a model folder.

    Raises:
        ModelError: A folder has ONNX files, but none named model.onnx and no safetensors weights.
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
    """Returns the files that a model folder is read from; [source] if it is a file."""
    if not source.is_dir():
        return [source]
    folder = _transformer_folder(source)
    names = (*_ONNX_FILES, "config.json", "tokenizer*.json", "model*.safetensors*")
    return [file for name in names for file in folder.glob(name)]


def _transformer_folder(folder: Path) -> Path:
    """Returns the folder with the transformer of a sentence-transformers folder.

    This is the subfolder 0_Transformer in old models, else `folder` itself.
    """
    inner = folder / "0_Transformer"
    if not (inner / "config.json").is_file():
        return folder
    check_link(inner, folder)
    return inner


# Each function below imports its importer on first use, to keep start-up short.


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
    """Checks that a model is not a language or speech model, which need several graphs and a loop.

    Args:
        source: A GGUF file, or a model folder.

    Raises:
        UnsupportedError: The model is a language or speech model; the message names the class and
            commands that run it.
        ModelError: The folder's config.json cannot be read.
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
