"""The JSON files of a model folder, and the values in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clrt.errors import ModelError


def read_json(file: Path) -> Mapping[str, Any]:
    """A JSON object; an empty one where there is no such file.

    Raises:
        ModelError: The file holds anything else.
    """
    if not file.is_file():
        return {}
    values = parse_json(file)
    if not isinstance(values, dict):
        raise ModelError(f"'{file}' must hold a JSON object; download the model's own file.")
    return values


def parse_json(file: Path) -> object:
    """What a JSON file holds.

    Raises:
        ModelError: It is not readable as JSON.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"'{file}' is not readable as JSON ({error}); download the model's own file."
        ) from error


def as_object(value: object) -> Mapping[str, Any]:
    """A JSON object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def positive_number(value: object) -> int | None:
    """A positive whole number; configs write "no limit" as null, -1 or 1e30."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1 << 31:
        return int(value)
    return None


def token_text(value: object) -> str:
    """A token as configs write it: its text, or an object that has it."""
    return str((value.get("content") if isinstance(value, Mapping) else value) or "")
