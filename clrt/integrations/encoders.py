"""The encoder behind an adapter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clrt.errors import InputError
from clrt.text import SentenceEncoder


def encoder_of(model: SentenceEncoder | str | Path, options: Mapping[str, Any]) -> SentenceEncoder:
    """The encoder itself, or one made of a path or a name.

    Args:
        model: An encoder, or what `SentenceEncoder` takes.
        options: Arguments of `SentenceEncoder`, for a path.

    Raises:
        InputError: Options are given for an encoder that is made already.
    """
    if not isinstance(model, SentenceEncoder):
        return SentenceEncoder(model, **options)
    if options:
        raise InputError(
            f"{', '.join(options)} cannot change an encoder that is made already; give its path."
        )
    return model
