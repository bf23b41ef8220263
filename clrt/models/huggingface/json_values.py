"""Values in the JSON files of a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_object(value: object) -> Mapping[str, Any]:
    """Returns the value if it is a JSON object, else {}."""
    return value if isinstance(value, Mapping) else {}


def positive_number(value: object) -> int | None:
    """Returns a positive number below 2^31, rounded down; None for any other value.

    Configurations write "no limit" as null, -1 or 1e30.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1 << 31:
        return int(value)
    return None


def token_text(value: object) -> str:
    """Returns the text of a token in a configuration; "" if there is none.

    Args:
        value: JSON value: the text, an object with the text as "content", or null.
    """
    return str((value.get("content") if isinstance(value, Mapping) else value) or "")
