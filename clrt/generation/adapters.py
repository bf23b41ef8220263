"""The `lora` argument of a text generator: LoRA adapters with their factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

from clrt.errors import InputError
from clrt.util.files import expanded

AdapterPath: TypeAlias = "str | Path"
Adapters: TypeAlias = "AdapterPath | Sequence[AdapterPath | tuple[AdapterPath, float]]"
"""LoRA adapters of a model: a path, or several, each optionally paired with its factor."""


def named_adapters(adapters: Any) -> list[tuple[Path, float]]:
    """Returns path and factor of each LoRA adapter of a `lora` argument; the default factor is 1.

    Args:
        adapters: A path, or a sequence whose elements are a path or (path, factor); () for none.

    Raises:
        InputError: `adapters` is not of the type `Adapters`, or a factor is not finite.
    """
    if isinstance(adapters, str | Path):
        adapters = [adapters]
    if not isinstance(adapters, Sequence):
        raise _wrong(adapters)
    named = []
    for one in adapters:
        path, factor = one if isinstance(one, tuple) and len(one) == 2 else (one, 1.0)
        if not isinstance(path, str | Path):
            raise _wrong(one)
        if isinstance(factor, bool) or not isinstance(factor, Real) or not math.isfinite(factor):
            raise InputError(f"The factor of adapter '{path}' is {factor!r}; expected a number.")
        named.append((expanded(path), float(factor)))
    return named


def _wrong(found: object) -> InputError:
    return InputError(
        f"lora is {repr(found)[:80]}; expected a path, or a list of paths and of pairs with a "
        "factor, such as ['style', ('facts', 0.5)]."
    )
