"""Values in the JSON files of a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
