"""Command-line option for LoRA adapters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from clrt.models.locate import find_model
from clrt.util.files import expanded

LoraOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<path>",
        help="Merge a LoRA adapter: a folder of peft's, or a GGUF file; PATH:0.5 merges half of "
        "it. May be repeated.",
    ),
]


def given_adapters(lora: Sequence[str] | None) -> list[tuple[Path, float]]:
    """Parses the values of option --lora into (path, factor) pairs for `TextGenerator`.

    Args:
        lora: Paths or names in Hugging Face's cache, each with an optional suffix `:FACTOR`; the
            default factor is 1. None for no adapters.

    Raises:
        ModelError: An adapter does not exist.
    """
    return [_adapter(text) for text in lora or ()]


def _adapter(text: str) -> tuple[Path, float]:
    """Returns the path and the factor (default 1) of an adapter given as `PATH[:FACTOR]`."""
    path, _, number = text.rpartition(":")
    try:
        factor = float(number)
    except ValueError:
        path, factor = "", 1.0
    if not path or expanded(text).exists():  # The path itself may end in a colon and number.
        path, factor = text, 1.0
    return find_model(path, organisation=""), factor
