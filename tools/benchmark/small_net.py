"""Descriptions of small nets: model, configuration, and inputs that are the same each time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Feed:
    """An input of random elements: normal floats, or integers in [low, below).

    Attributes:
        below: Exclusive upper bound of integers; None for float32.
        axes: Names of the axes that the export keeps dynamic.
    """

    shape: tuple[int, ...]
    below: int | None = None
    low: int = 0
    dtype: str = "int64"
    axes: Mapping[int, str] | None = None

    def draw(self, rng: np.random.Generator) -> NDArray[Any]:
        """Returns the array."""
        if self.below is None:
            return rng.standard_normal(self.shape, np.float32)
        return rng.integers(self.low, self.below, self.shape, self.dtype)


@dataclass(frozen=True)
class SmallNet:
    """A net to export.

    Attributes:
        kind: A class of transformers, or of `small_models`.
        feeds: Inputs by name; the batch is 1.
        config: Fields of the configuration, or arguments of the class.
        part: Attribute of the model to export; "" for the whole model.
    """

    kind: str
    feeds: Mapping[str, Feed]
    config: Mapping[str, Any]
    part: str = ""


def draw_feeds(feeds: Mapping[str, Feed]) -> dict[str, NDArray[Any]]:
    """Returns the inputs of a net, the same each time."""
    rng = np.random.default_rng(0)
    return {name: np.asarray(feed.draw(rng)) for name, feed in feeds.items()}


def file_stem(name: str) -> str:
    """Returns the file name of a net, without its suffix."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())
