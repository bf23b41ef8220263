"""Sentence encoders that the adapters for other libraries use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clrt.errors import InputError
from clrt.text import SentenceEncoder


def encoder_of(model: SentenceEncoder | str | Path, options: Mapping[str, Any]) -> SentenceEncoder:
    """Returns the sentence encoder of an adapter: `model` itself, or the encoder that it names.

    Args:
        model: An encoder, or a path or name as in `SentenceEncoder`.
        options: Keyword arguments passed to `SentenceEncoder`, for a path or name only.

    Raises:
        InputError: `model` is an encoder, and there are options.
    """
    if not isinstance(model, SentenceEncoder):
        return SentenceEncoder(model, **options)
    if options:
        raise InputError(
            f"{', '.join(options)} cannot be applied to an existing encoder; give its path."
        )
    return model
