"""The JSON files beside a model: labels and the like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from clrt.errors import ModelError

RGB: TypeAlias = tuple[float, float, float]
_MOST_BYTES = 64 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelError: It is missing, no JSON, or no object.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ModelError(f"'{path}' has more than {_MOST_BYTES} bytes; it is no config.")
        found = json.loads(data)
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{path}' is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ModelError(f"'{path}' is a {type(found).__name__}; expected an object.")
    return found


def labels_of(config: dict[str, Any]) -> dict[int, str]:
    """The names of classes by number, as `id2label` of a config.json has them.

    Raises:
        ModelError: The numbers are none.
    """
    given = config.get("id2label") or {}
    try:
        return {int(k): str(v) for k, v in given.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelError(f"id2label is no map from numbers to names: {error}.") from error
