"""Identifies models by the content of their files, for the cache of executables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clrt.errors import ModelError
from clrt.formats.checksum import digest_of
from clrt.formats.safetensors import SafetensorsHeader
from clrt.models.compiled_file import open_compiled
from clrt.models.sources import is_compiled, model_files, onnx_file
from clrt.runtime.model.executable_store import ExecutableKey, key_for
from clrt.runtime.model.graph_recipe import GraphRecipe

if TYPE_CHECKING:
    from clrt.device.caps import DeviceCaps

# Files of a model folder that the graph may depend on.
_PATTERNS = ("*.json", "*/*.json", "*/*.safetensors")


def model_key(source: Any, caps: DeviceCaps, level: int, programs: Path) -> ExecutableKey | None:
    """Returns the key of the executable of a model; None for a model that is not read from files.

    Also None if the files cannot be read: opening the model then says why.

    Args:
        source: Source of the model, as for `clrt.load`.
        caps: Capabilities of the device.
        level: `optimize_level` of `clrt.load`.
        programs: Folder of compiled programs.
    """
    try:
        if isinstance(source, SafetensorsHeader) or is_compiled(source):
            if not isinstance(source, SafetensorsHeader):
                source = open_compiled(Path(source))
            # What the file says is checked before the first result, in both ways to load it.
            content = source.metadata.get("digest", "")
            return key_for([source.file], content, caps, level, programs) if content else None
        if isinstance(source, GraphRecipe):
            return key_for(source.files, source.content, caps, level, programs)
        if not isinstance(source, (str, Path)):
            return None
        path = Path(source)
        file = onnx_file(path)
        files = [file] if file is not None else _folder_files(path)
    except (ModelError, OSError):
        return None
    if not files or not all(map(os.path.isfile, files)):  # `Path.is_file` raises for some paths
        return None
    return key_for(files, digest_of(files), caps, level, programs)


def _folder_files(folder: Path) -> list[Path]:
    found = (f for pattern in _PATTERNS for f in folder.glob(pattern))
    return sorted({*model_files(folder), *found})
