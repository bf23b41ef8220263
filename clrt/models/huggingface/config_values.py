"""Typed access to the values of a config.json, which is untrusted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clrt.errors import ModelError, UnsupportedError

# Maximum number of layers. Layers may share weights (ALBERT), so the file's size does not bound it.
MAX_LAYERS = 10_000
_MAX_SHOWN = 80


class ConfigValues:
    """The values of a config.json, or of an object in it, by clrt's names of the keys.

    Args:
        file: The file, for messages.
        values: The JSON object.
        names: Key in the file by clrt's key, for keys with different names; None for none.
        defaults: Values of keys that may be missing; None for none.
        fixed: Values that override values of the file; None for none.
        within: Path of the object in the file, with a trailing dot; "" for the root.
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
        present = {**values, **renamed, **(fixed or {})}
        self._values: dict[str, object] = {**(defaults or {}), **present}
        self._within = within

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, key: str) -> object:
        """Returns the JSON value of a key, of any type; None if it is missing or null."""
        return self._values.get(key)

    def integer(
        self, key: str, default: int | None = None, least: int = 1, most: int = (1 << 31) - 1
    ) -> int:
        """Returns an integer in [least, most]; the default if the key is missing or null.

        Raises:
            ModelError: The value is not an integer, out of range, or missing without a default.
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
        """Returns a finite number in [least, most]; the default if the key is missing or null.

        Raises:
            ModelError: The value is not a finite number, out of range, or missing without a
                default.
        """
        value = self._value(key, default)
        result = _finite(value)
        if result is None:
            raise self.wrong(key, "a number", value)
        if not least <= result <= most:
            raise self.wrong(key, f"a number of {least:g} to {most:g}", value)
        return result

    def flag(self, key: str, default: bool) -> bool:
        """Returns a boolean; the default if the key is missing or null.

        Raises:
            ModelError: The value is not a boolean.
        """
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str) -> str:
        """Returns a string; the default if the key is missing or null.

        Raises:
            ModelError: The value is not a string.
        """
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string", value)
        return value

    def numbers(self, key: str, count: int, *, longer: bool = False) -> list[float]:
        """Returns a list of `count` finite numbers.

        Args:
            longer: Whether the list may be longer; elements after the first `count` are ignored.

        Raises:
            ModelError: The value is missing, not a list of finite numbers, or of another length.
        """
        value = self.get(key)
        elements = [_finite(v) for v in value] if isinstance(value, list) else [None]
        elements = elements[:count] if longer else elements
        if len(elements) != count or None in elements:
            raise self.wrong(key, f"a list of {count} finite numbers", value)
        return [v for v in elements if v is not None]

    def texts(self, key: str, count: int, known: Sequence[str]) -> list[str]:
        """Returns the first `count` strings of a list, each one of `known`.

        Raises:
            ModelError: The value is missing, not a list, too short, or has an element that is not
                in `known`.
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
        """Returns the values of a nested object; none if the object is missing or null.

        Args:
            key: Key of the object.
            names: Key in the object by clrt's key, for keys with different names; None for none.
            defaults: Values of keys that may be missing in the object; None for none.

        Raises:
            ModelError: The value is not an object.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return ConfigValues(
            self.file, value or {}, names, defaults, within=f"{self._within}{self.name_of(key)}."
        )

    def name_of(self, key: str) -> str:
        """Returns the key in the file for clrt's name of it; `key` itself if the two are equal."""
        return self._names.get(key, key)

    def wrong(self, key: str, kind: str, value: object) -> ModelError:
        """Returns the error for a value of the wrong type or range.

        Args:
            key: Key of the value.
            kind: The expected value, e.g. "a string".
            value: The value in the file.
        """
        return ModelError(
            f"{self.file} must give '{self._within}{self.name_of(key)}' as {kind}, "
            f"not {_shown(value)}; {_remedy(self.file)}"
        )

    def unsupported(self, key: str, what: str) -> UnsupportedError:
        """Returns the error for a valid value that clrt does not support.

        Args:
            key: Key of the value.
            what: What clrt supports instead. The message has it in parentheses after "does not
                support": "(true is)".
        """
        value = _shown(self.get(key))
        return UnsupportedError(
            f"{self.file} gives '{self._within}{self.name_of(key)}' as {value}, which clrt does "
            f"not support ({what}); use another model, or export this one to ONNX."
        )

    def _value(self, key: str, default: object) -> object:
        value = self._values.get(key)
        return default if value is None else value


def _remedy(file: Path) -> str:
    return f"download the model's own {file.name}."


def _finite(value: object) -> float | None:
    """Returns the value as a finite float; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
