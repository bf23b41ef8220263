"""Reads the JSON and text files of model folders, with limits.

A folder is untrusted: its files may be pipes, devices, sparse gigabytes, or links to files
elsewhere. All text files of model folders must be read through this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clrt.errors import ModelError
from clrt.util.files import check_link, parse_json, read_regular, stays_below

# Maximum size of a file: tokenizer.json of the largest vocabularies (262,144 tokens) has 33 MB.
MAX_BYTES = 64 << 20
# Maximum number of objects and lists in a JSON file: Python needs 64 bytes or more for each, the
# file two.
_MAX_CONTAINERS = 1 << 21


def read_text(file: Path) -> str:
    """Returns the content of a UTF-8 text file.

    Raises:
        ModelError: The file is missing, not a regular file, larger than `MAX_BYTES`, not UTF-8, or
            a link that leads out of its folder.
    """
    try:
        check_link(file, file.parent)
        return read_regular(file, MAX_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        raise ModelError(
            f"{file} is missing; download the model's own {file.name} into its folder."
        ) from error
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ModelError(
            f"'{file}' cannot be read: {reason}; download the model's own file."
        ) from error


def read_json(file: Path) -> Any:
    """Returns the value in a JSON file.

    Raises:
        ModelError: The file cannot be read (see `read_text`), is not JSON, or has too many objects
            and lists.
    """
    text = read_text(file)
    if text.count("[") + text.count("{") > _MAX_CONTAINERS:
        raise ModelError(
            f"'{file}' has more than {_MAX_CONTAINERS} lists and objects; download the model's own "
            "file."
        )
    try:
        return parse_json(text)
    except ValueError as error:
        raise ModelError(
            f"'{file}' is not valid JSON ({error}); download the model's own file."
        ) from error


def read_object(file: Path) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Raises:
        ModelError: The file cannot be read, is not JSON, or holds another JSON value.
    """
    value = read_json(file)
    if not isinstance(value, dict):
        raise ModelError(f"'{file}' must hold a JSON object; download the model's own file.")
    return value


def read_optional(file: Path) -> Mapping[str, Any]:
    """Returns the JSON object in a file; an empty one if the file does not exist.

    Raises:
        ModelError: The file exists, but cannot be read, is not JSON, or holds another JSON value.
    """
    return read_object(file) if file_exists(file) else {}


def file_exists(file: Path) -> bool:
    """Returns whether the path exists, even if it is not a regular file.

    Raises:
        ModelError: The path cannot be looked up.
    """
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"'{file}' cannot be read: {reason}.") from error
    return True


def path_in(folder: Path, name: str) -> Path:
    """Returns the path of a file or folder that is named by a file of a model folder.

    Args:
        folder: The model folder.
        name: A relative path below `folder`; "" and "." for `folder` itself.

    Raises:
        ModelError: The path is absolute, has "..", or is a link that leads out of the folder.
    """
    if not stays_below(name):
        raise ModelError(
            f"'{folder}' names '{name[:200]}', which is outside the folder; download the "
            "model's own files."
        )
    path = folder / name
    check_link(path, folder)
    return path
