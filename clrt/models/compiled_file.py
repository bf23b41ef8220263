"""Header of compiled models: format, version and metadata, without the graph.

`clrt.models.compiled` describes the format and reads the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clrt.errors import ModelError
from clrt.formats.safetensors import SafetensorsHeader, damaged, parse_json, read_header

SUFFIX = ".clrt"
FORMAT = "clrt"
VERSION = 1
_VERSIONS = [str(n) for n in range(1, VERSION + 1)]


def read_extras(path: Path) -> Mapping[str, Any]:
    """Returns the extras of a compiled model, JSON values by name, without reading its weights.

    Raises:
        ModelError: The file is damaged, not a compiled model, or of a newer version.
    """
    return extras_of(open_compiled(path))


def open_compiled(path: Path) -> SafetensorsHeader:
    """Reads the header of a compiled model and checks its format and version.

    Raises:
        ModelError: The file is damaged, not a compiled model, or of a newer version.
    """
    header = read_header(path)
    metadata = header.metadata
    if metadata.get("format") != FORMAT:
        raise ModelError(
            f"{header.file} is not a compiled model of clrt; create one by "
            f"clrt-convert SOURCE -o {header.file.stem}{SUFFIX}."
        )
    version = metadata.get("version", "")
    if version not in _VERSIONS:
        raise ModelError(
            f"{header.file} has version {version[:100]} of clrt's format and this clrt reads up to "
            f"{VERSION}: it was written by {metadata.get('producer', '')[:100]}; upgrade clrt, or "
            "convert the model again."
        )
    return header


def extras_of(header: SafetensorsHeader) -> dict[str, Any]:
    """Returns the extras of a compiled model (tokenizer, conversion settings), by name.

    Raises:
        ModelError: The extras are missing, or not a JSON object.
    """
    extras: dict[str, Any] = json_of(header, "extras", lambda v: is_object(v, object))
    return extras


def is_object(value: Any, kind: type) -> bool:
    """Returns whether a value is a JSON object whose values are all of type `kind`."""
    return isinstance(value, dict) and all(isinstance(v, kind) for v in value.values())


def text_of(header: SafetensorsHeader, name: str) -> str:
    if name not in header.metadata:
        raise damaged(header.file, f"it has no {name}")
    return header.metadata[name]


def load_json(header: SafetensorsHeader, name: str) -> Any:
    try:
        return parse_json(text_of(header, name))
    except (ValueError, RecursionError) as error:
        raise damaged(header.file, f"its {name} cannot be read, {error!r}") from error


def json_of(header: SafetensorsHeader, name: str, holds: Callable[[Any], bool]) -> Any:
    """Returns the JSON value of a metadata entry of a compiled model.

    Args:
        header: Header of the file.
        name: Name of the entry: "shapes".
        holds: Returns whether the value has the expected type.

    Raises:
        ModelError: The entry is missing, not JSON, or has another type.
    """
    value = load_json(header, name)
    if not holds(value):
        raise damaged(header.file, f"its {name} have the wrong type")
    return value
