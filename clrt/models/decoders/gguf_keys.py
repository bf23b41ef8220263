"""Typed access to the architecture's keys in the metadata of a GGUF file."""

from __future__ import annotations

import math

import numpy as np

from clrt.errors import ModelError
from clrt.formats.gguf.metadata import Metadata

_REMEDY = "download the model again, or convert it with a newer llama.cpp."


class DecoderKeys:
    """Metadata of a GGUF file under keys "ARCHITECTURE.name", accessed by `name`.

    Attributes:
        metadata: All metadata of the file.
        architecture: The name of the architecture ("general.architecture").
    """

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.architecture = metadata.text("general.architecture")

    def __contains__(self, name: str) -> bool:
        return self.key(name) in self.metadata

    def key(self, name: str) -> str:
        """Returns the full metadata key, "ARCHITECTURE.name"."""
        return f"{self.architecture}.{name}"

    def text(self, name: str, default: str) -> str:
        """Returns a string; the default if the key is missing.

        Raises:
            ModelError: The value is not a string.
        """
        return self.metadata.text(self.key(name), default)

    def flag(self, name: str, default: bool) -> bool:
        """Returns a boolean; the default if the key is missing.

        Raises:
            ModelError: The value is not a boolean.
        """
        return self.metadata.flag(self.key(name), default)

    def integer(
        self, name: str, default: int | None = None, least: int = 1, most: int = (1 << 31) - 1
    ) -> int:
        """Returns an integer in [least, most]; the default if the key is missing.

        Raises:
            ModelError: The value is not an integer, out of range, or missing without a default.
        """
        value = self.metadata.integer(self.key(name), default)
        if not least <= value <= most:
            raise self.wrong(name, f"a whole number of {least} to {most}", value)
        return value

    def number(
        self,
        name: str,
        default: float | None = None,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> float:
        """Returns a finite number in [least, most]; the default if the key is missing.

        Raises:
            ModelError: The value is not such a number, or is missing without a default.
        """
        value = self.metadata.number(self.key(name), default)
        if not math.isfinite(value) or not least <= value <= most:
            raise self.wrong(name, f"a number of {least:g} to {most:g}", value)
        return value

    def shared(
        self, name: str, layers: int, default: int | None = None, most: int = (1 << 31) - 1
    ) -> int:
        """Returns an integer in [1, most] that all layers share; the default if it is missing.

        The file stores it once, or in an array with an equal element for each layer.

        Raises:
            ModelError: The value is not an integer, out of range, missing without a default, or
                layers have different values.
        """
        if not isinstance(self.metadata.get(self.key(name)), np.ndarray):
            return self.integer(name, default, most=most)
        values = set(self.metadata.numbers(self.key(name)).tolist())
        if len(values) != 1:
            raise self.wrong(name, f"one number for all {layers} layers", sorted(values)[:4])
        value = values.pop()
        if type(value) is not int or not 1 <= value <= most:
            raise self.wrong(name, f"a whole number of 1 to {most}", value)
        return value

    def wrong(self, name: str, kind: str, value: object) -> ModelError:
        """Returns the error for a value of the wrong type or range.

        Args:
            name: Key without the architecture.
            kind: The expected value, e.g. "an even number".
            value: The value in the file.
        """
        return ModelError(
            f"The metadata '{self.key(name)}' of {self.metadata.file} is {value} and not {kind}; "
            f"{_REMEDY}"
        )
