"""Typed access to what the metadata of a GGUF file says of its architecture."""

from __future__ import annotations

import math

import numpy as np

from clrt.errors import ModelError
from clrt.formats.gguf.metadata import Metadata

_REMEDY = "download the model again, or convert it with a newer llama.cpp."


class DecoderKeys:
    """The keys that start with the name of the architecture, under the names behind it.

    Attributes:
        metadata: All of the metadata.
        architecture: The name of the architecture.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.architecture = metadata.text("general.architecture")

    def __contains__(self, name: str) -> bool:
        return self.key(name) in self.metadata

    def key(self, name: str) -> str:
        """The whole key."""
        return f"{self.architecture}.{name}"

    def text(self, name: str, default: str) -> str:
        """A text; the default where the key is missing.

        Raises:
            ModelError: It is something else.
        """
        return self.metadata.text(self.key(name), default)

    def flag(self, name: str, default: bool) -> bool:
        """A truth value, as `text`."""
        return self.metadata.flag(self.key(name), default)

    def integer(
        self, name: str, default: int | None = None, least: int = 1, most: int = (1 << 31) - 1
    ) -> int:
        """A whole number; the default where the key is missing.

        Raises:
            ModelError: It is something else, out of range, or missing without a default.
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
        """A finite number, as `integer`."""
        value = self.metadata.number(self.key(name), default)
        if not math.isfinite(value) or not least <= value <= most:
            raise self.wrong(name, f"a number of {least:g} to {most:g}", value)
        return value

    def shared(
        self, name: str, layers: int, default: int | None = None, most: int = (1 << 31) - 1
    ) -> int:
        """A whole number of at least 1 that all layers have: one, or an array with one for each.

        Raises:
            ModelError: As `integer`, or layers have different ones.
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
        """The error for a value that is not of a kind."""
        return ModelError(
            f"The metadata '{self.key(name)}' of {self.metadata.file} is {value} and not {kind}; "
            f"{_REMEDY}"
        )
