"""Reads files, bytes and folders into graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from clrt.container.compiled import SUFFIX, read_compiled
from clrt.errors import ModelError
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.ops.blaming import Blaming

if TYPE_CHECKING:
    import onnx

Source: TypeAlias = "str | Path | bytes | onnx.ModelProto | Graph"

# Where a folder may have its ONNX file, best first.
_ONNX_FILES = ("onnx/model.onnx", "model.onnx")


def read_graph(source: Source) -> Graph:
    """The graph of a model before any pass.

    Raises:
        ModelError, UnsupportedError: As `load`.
    """
    if isinstance(source, Graph):
        return source.copy()
    if is_compiled(source):
        return read_compiled(Path(source)).graph
    from clrt.importer.onnx_importer import (
        import_model,
    )  # loading a compiled model does not import onnx

    if not isinstance(source, (str, Path)):
        return import_model(*onnx_source(source))
    with Blaming(f"'{source}'"):
        return import_model(*onnx_source(source))


def onnx_source(
    source: str | Path | bytes | onnx.ModelProto,
) -> tuple[Path | bytes | onnx.ModelProto, Mapping[str, Array]]:
    """The model proto of a file, its bytes or a folder, and the weights it does not contain.

    Raises:
        ModelError: A folder has no model, or its model is damaged.
    """
    if isinstance(source, (str, Path)) and os.path.isdir(source):  # where Path's raises, False
        folder = _transformer_folder(Path(source))
        for name in _ONNX_FILES:
            if (folder / name).is_file():
                return folder / name, {}
        others = [f for pattern in ("onnx/*.onnx", "*.onnx") for f in sorted(folder.glob(pattern))]
        if others and not any(folder.glob("*.safetensors")):
            listing = ", ".join(map(str, others))
            raise ModelError(f"'{folder}' has no model.onnx but {listing}; give the path of one.")
        from clrt.importer.huggingface import build_model

        return build_model(folder)
    return Path(source) if isinstance(source, str) else source, {}


def model_files(source: Path) -> list[Path]:
    """The files that a model is read from, by their names."""
    if not source.is_dir():
        return [source]
    folder = _transformer_folder(source)
    names = (*_ONNX_FILES, "config.json", "tokenizer*.json", "model*.safetensors*")
    return [file for name in names for file in folder.glob(name)]


def _transformer_folder(folder: Path) -> Path:
    """The folder of the transformer; older folders of sentence-transformers have 0_Transformer."""
    inner = folder / "0_Transformer"
    return inner if (inner / "config.json").is_file() else folder


def is_compiled(source: Source) -> TypeGuard[str | Path]:
    """Whether a source is a compiled model. Its graph is already optimised."""
    return isinstance(source, (str, Path)) and Path(source).suffix == SUFFIX
