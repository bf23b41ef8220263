"""Typed access to the values of a config.json, which may hold anything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clrt.errors import ModelError, UnsupportedError

# Layers may share weights (ALBERT): nothing else would end a graph of too many.
MAX_LAYERS = 10_000
_MAX_SHOWN = 80


class ConfigValues:
    """The values of a config.json, or of an object in it, under the names used here.

    Args:
        file: The file, for messages.
        values: Its values.
        names: Other names that the file may use for keys read here.
        defaults: Values of keys that may be missing.
        fixed: Values that hold whatever the file says.
        within: The path of the object in the file, with a dot behind it.
    """

    def __init__(
        self,
        file: Path,
        values: Mapping[str, Any],
        names: Mapping[str, str] | None = None,
        defaults: Mapping[str, object] | None = None,
        fixed: Mapping[str, object] | None = None,
        within: str = "",
    ) -> None:
        self.file = file
        self._names = names or {}
        renamed = {key: values[old] for key, old in self._names.items() if old in values}
        own = {**values, **renamed, **(fixed or {})}
        self._values: dict[str, object] = {**(defaults or {}), **own}
        self._within = within

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, key: str) -> object:
        """A value as it is; None where it is missing."""
        return self._values.get(key)

    def integer(
        self, key: str, default: int | None = None, least: int = 1, most: int = (1 << 31) - 1
    ) -> int:
        """A whole number; the default where it is missing or null.

        Raises:
            ModelError: It is none, or out of range.
        """
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(key, f"a whole number of at least {least}", value)
        if value > most:
            raise self.wrong(key, f"a whole number of at most {most}", value)
        return value

    def number(
        self,
        key: str,
        default: float | None = None,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> float:
        """A finite number; the default where it is missing or null.

        Raises:
            ModelError: It is none, or out of range.
        """
        value = self._value(key, default)
        found = _finite(value)
        if found is None:
            raise self.wrong(key, "a number", value)
        if not least <= found <= most:
            raise self.wrong(key, f"a number of {least:g} to {most:g}", value)
        return found

    def flag(self, key: str, default: bool) -> bool:
        """A truth value; the default where it is missing or null.

        Raises:
            ModelError: It is none.
        """
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str) -> str:
        """A string; the default where it is missing or null.

        Raises:
            ModelError: It is none.
        """
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string", value)
        return value

    def numbers(self, key: str, count: int, *, longer: bool = False) -> list[float]:
        """A list of finite numbers.

        Args:
            longer: It may go on, which is left out.

        Raises:
            ModelError: It is none, or of another length.
        """
        value = self.get(key)
        found = [_finite(v) for v in value] if isinstance(value, list) else [None]
        found = found[:count] if longer else found
        if len(found) != count or None in found:
            raise self.wrong(key, f"a list of {count} finite numbers", value)
        return [v for v in found if v is not None]

    def texts(self, key: str, count: int, known: Sequence[str]) -> list[str]:
        """The first strings of a list; each is one of those known.

        Raises:
            ModelError: It is none, or shorter.
        """
        value = self.get(key)
        if not isinstance(value, list) or len(value) < count or any(v not in known for v in value):
            raise self.wrong(key, f"a list of {count} out of {', '.join(known)}", value)
        return value[:count]

    def inner(
        self,
        key: str,
        names: Mapping[str, str] | None = None,
        defaults: Mapping[str, object] | None = None,
    ) -> ConfigValues:
        """An object in it; an empty one where it is missing or null.

        Raises:
            ModelError: It is none.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return ConfigValues(
            self.file, value or {}, names, defaults, within=f"{self._within}{self._stored(key)}."
        )

    def wrong(self, key: str, kind: str, value: object) -> ModelError:
        """The error for a value that is not of a kind."""
        return ModelError(
            f"{self.file} must give '{self._within}{self._stored(key)}' as {kind}, "
            f"not {_shown(value)}; {_remedy(self.file)}"
        )

    def unsupported(self, key: str, what: str) -> UnsupportedError:
        """The error for a value that is right but not supported.

        Args:
            what: What is supported instead.
        """
        value = _shown(self.get(key))
        return UnsupportedError(
            f"{self.file} gives '{self._within}{self._stored(key)}' as {value}, which clrt does "
            f"not support ({what}); take another model, or export this one to ONNX."
        )

    def _value(self, key: str, default: object) -> object:
        value = self._values.get(key)
        return default if value is None else value

    def _stored(self, key: str) -> str:
        return self._names.get(key, key)


def _remedy(file: Path) -> str:
    return f"download the model's own {file.name}."


def _finite(value: object) -> float | None:
    """The value as a finite float; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
