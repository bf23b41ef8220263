"""Small text files of a model folder, which anybody may have made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clrt.errors import ModelError
from clrt.files import read_regular

# The tokenizer_config.json of models with many added tokens has some MB.
_MOST_BYTES = 64 << 20


def read_text(file: Path) -> str:
    """A text file, as UTF-8.

    Raises:
        ModelError: It cannot be read, is no regular file or too large, or is not UTF-8.
    """
    try:
        return read_regular(file, _MOST_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(
            f"'{file}' is not readable as text ({error}); download the model's own file."
        ) from error


def read_object(file: Path) -> Mapping[str, Any]:
    """A JSON object; an empty one where there is no such file.

    Raises:
        ModelError: The file holds anything else.
    """
    if not file.exists():
        return {}
    text = read_text(file)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{file}' is not JSON ({error}); download the model's own file.") from (
            error
        )
    if not isinstance(found, dict):
        raise ModelError(f"'{file}' holds no JSON object; download the model's own file.")
    return found
