"""Identifies models by the content of their files, for the cache of executables."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from clrt.errors import ModelError
from clrt.formats.checksum import digest_of
from clrt.formats.safetensors import SafetensorsHeader
from clrt.models.compiled_file import open_compiled
from clrt.models.sources import is_compiled, model_files, onnx_file
from clrt.runtime.model.executable_store import ModelContent, code_digest, uses_executables
from clrt.runtime.model.graph_recipe import GraphRecipe

# Files of a model folder that the graph may depend on.
_PATTERNS = ("*.json", "*/*.json", "*/*.safetensors")


def model_content(source: Any) -> ModelContent | None:
    """Returns files and digest of a model; None for a model that is not read from files.

    Also None if executables are switched off, or if the files cannot be read: opening the model
    then says why.

    Args:
        source: Source of the model, as for `clrt.load`.
    """
    if not uses_executables():
        return None
    code_digest()  # for the key, while nobody waits for it
    try:
        if isinstance(source, SafetensorsHeader) or is_compiled(source):
            if not isinstance(source, SafetensorsHeader):
                source = open_compiled(Path(source))
            # What the file says is checked before the first result, in both ways to load it.
            content = source.metadata.get("digest", "")
            return ModelContent.read([source.file], lambda: content) if content else None
        if isinstance(source, GraphRecipe):
            return ModelContent.read(source.files, source.digest)
        if not isinstance(source, (str, Path)):
            return None
        path = Path(source)
        file = onnx_file(path)
        files = [file] if file is not None else _folder_files(path)
        if not files or not all(map(os.path.isfile, files)):  # `Path.is_file` raises for some paths
            return None
        return ModelContent.read(files, partial(digest_of, files))
    except (ModelError, OSError):
        return None


def _folder_files(folder: Path) -> list[Path]:
    found = (f for pattern in _PATTERNS for f in folder.glob(pattern))
    return sorted({*model_files(folder), *found})
