"""Configuration files beside an image model, or stored in a compiled model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from clrt.errors import ClrtError, ModelError
from clrt.models.compiled_file import SUFFIX, read_extras
from clrt.models.huggingface.model_files import file_exists, read_object
from clrt.util.fast_dataclass import dataclass
from clrt.vision.presets import NAME, is_known_kind

_EXTRA = "vision"
# Keys of config.json that are used, and stored in compiled models.
_KEYS = ("id2label", "model_type", "problem_type", "text_config", "max_position_embeddings")


@dataclass(frozen=True)
class Companions:
    """Configurations of an image model.

    Attributes:
        config: Contents of config.json; empty if there is none.
        preprocessor: preprocessor_config.json, as a path or as its contents; None if there is none.
    """

    config: dict[str, Any] = field(default_factory=dict)
    preprocessor: Path | Mapping[str, Any] | None = None


def beside(path: Path, name: str) -> Path | None:
    """Returns the path of file `name` in a model's folder; None if it is missing.

    Args:
        path: The model's folder, or a model file. For a model file, the file's folder is searched,
            then the parent of this folder.
        name: Name of the file to look for.
    """
    folders = [path] if path.is_dir() else [path.parent, path.parent.parent]
    return next((f / name for f in folders if file_exists(f / name)), None)


def read_companions(path: Path) -> Companions:
    """Reads the configurations beside a model, or in a compiled one.

    For a compiled model without stored configurations, reads the files beside it.

    Raises:
        ModelError: A file is damaged.
    """
    if path.suffix == SUFFIX and not path.is_dir():
        stored = read_extras(path).get(_EXTRA)
        if stored is not None:
            return _stored(path, stored)
    config = beside(path, "config.json")
    return Companions({} if config is None else read_object(config), beside(path, NAME))


def companions_for_compiled(source: Path) -> dict[str, Any]:
    """Returns the configurations to store in a compiled image model.

    Returns {} if the model has no supported image processor, or a configuration is damaged.

    Args:
        source: A folder, an ONNX file or a compiled model.
    """
    try:
        companions = read_companions(source)
        preprocessor = companions.preprocessor
        values = read_object(preprocessor) if isinstance(preprocessor, Path) else preprocessor
    except ClrtError:
        return {}  # a damaged file does not prevent compiling; opening the folder reports it
    if values is None or not is_known_kind(values):
        return {}
    config = {k: companions.config[k] for k in _KEYS if k in companions.config}
    return {_EXTRA: {"config": config, "preprocessor": dict(values)}}


def _stored(path: Path, held: object) -> Companions:
    """Returns the configurations stored in a compiled model.

    Args:
        path: The compiled model, for messages.
        held: JSON value that holds the configurations.

    Raises:
        ModelError: A configuration is missing, or not a JSON object.
    """
    parts = held if isinstance(held, dict) else {}
    config, preprocessor = parts.get("config"), parts.get("preprocessor")
    if not isinstance(config, dict) or not isinstance(preprocessor, dict):
        raise ModelError(
            f"'{path}' is damaged: its image settings are not objects; convert it again."
        )
    return Companions(config, preprocessor)
