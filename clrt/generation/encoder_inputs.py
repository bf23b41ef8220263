"""What encoders read: sources, their place in a cache, and the inputs of a batch of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from clrt.errors import InputError
from clrt.generation.page_pool import NOTHING
from clrt.ir.op import Array
from clrt.models.decoders.decoder import DecoderConfig
from clrt.ops.attention.page_layout import PAGE_TOKENS
from clrt.util.math import ceil_div

Given: TypeAlias = "Sequence[int] | Array"
"""Tokens; or frames, float32 `[frames, features]`."""

# Places of a batch, padding included, unless one source alone has more.
_MOST_PLACES = 4096
# Sources of one batch have at most this share of the longest one as padding, or so many places.
_PADDING, _FEW = 0.25, 16
NOWHERE = -1
"""The row of a source that nothing is kept of."""


@dataclass(eq=False)
class EncoderInput:
    """What an encoder reads, and the pages with what cross-attention sees of it.

    Attributes:
        given: int32 `[tokens]`, or float32 `[frames, features]`.
        places: How many states it has.
        key: Tells sources apart.
        row: Of the table.
        users: Sequences, and others, that need it.
        pages: Where its states are.
        content: What the last page holds (`KvPagePool.fill`); texts of another source have other
            keys and values though their tokens be the same.
        done: Whether the states are there.
    """

    given: Array
    places: int
    key: bytes
    row: int
    users: int = 0
    pages: list[int] = field(default_factory=list)
    content: int = NOTHING
    done: bool = False

    @property
    def left(self) -> int:
        """How many places have yet to be computed."""
        return 0 if self.done else self.places

    @property
    def parts(self) -> list[tuple[bytes, int]]:
        """What each of its pages holds (`KvPagePool.fill`)."""
        return [(self.key, index) for index in range(ceil_div(self.places, PAGE_TOKENS))]

    def forget(self) -> None:
        """The cache begins anew."""
        self.pages, self.content, self.done = [], NOTHING, False


class CheckedSource(NamedTuple):
    """A source as the encoder takes it, how many places it has, and what tells it apart."""

    given: Array
    places: int
    key: bytes


def source_of(given: Given, encoder: DecoderConfig | None) -> CheckedSource:
    """A source, checked.

    Raises:
        InputError: The model has no encoder, or one that reads something else; or it has no or too
            many places.
    """
    if encoder is None:
        raise InputError("The model has no encoder; give its text as a prompt.")
    array = np.asarray(given)
    if encoder.features:
        array = np.ascontiguousarray(array, np.float32)
        if array.ndim != 2 or array.shape[1] != encoder.features:
            raise InputError(
                f"The source has shape {list(array.shape)}; the encoder reads frames, [frames, "
                f"{encoder.features}]."
            )
    else:
        array = array.astype(np.int32).reshape(-1)
    places = ceil_div(len(array), encoder.stride)
    if not places:
        raise InputError("The source is empty; give at least one token or frame.")
    if places > encoder.context:
        what = "source has {} frames" if encoder.features else "prompt has {} tokens"
        raise InputError(
            f"The {what.format(len(array))}, and the encoder reads at most "
            f"{encoder.context * encoder.stride}; shorten it, or choose a larger context."
        )
    # Different frames are never taken for the same by a digest of this length.
    key = hashlib.blake2b(array.tobytes(), digest_size=32).digest()
    return CheckedSource(array, places, key)


def batches_of(sources: Sequence[EncoderInput]) -> Iterator[list[EncoderInput]]:
    """Sources that are encoded together: of about one length."""
    batch: list[EncoderInput] = []
    for source in sorted(sources, key=lambda s: -s.places):
        longest = batch[0].places if batch else 0
        short = longest - source.places > max(_PADDING * longest, _FEW)
        if batch and (short or (len(batch) + 1) * longest > _MOST_PLACES):
            yield batch
            batch = []
        batch.append(source)
    if batch:
        yield batch


def input_shapes(encoder: DecoderConfig, batch: int, places: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs of `EncoderPart` for so many sources of so many places."""
    source: tuple[int, ...] = (batch, places)
    if encoder.features:
        source = (batch, places * encoder.stride, encoder.features)
    return {"source": source, "lengths": (batch,), "writes": (batch, places, 3)}


def longest_shapes(encoder: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The same of the largest batch that there may be."""
    return input_shapes(encoder, max(_MOST_PLACES // encoder.context, 1), encoder.context)


def encoder_inputs(batch: Sequence[EncoderInput], encoder: DecoderConfig) -> dict[str, Array]:
    """The inputs of `EncoderPart` for a batch of sources, perhaps of none."""
    places = max((source.places for source in batch), default=1)
    if places > _FEW and not encoder.features:
        places = ceil_div(places, _FEW) * _FEW  # each number of places has a plan
    shapes = input_shapes(encoder, len(batch), places)
    given = np.zeros(shapes["source"], np.float32 if encoder.features else np.int32)
    writes = np.zeros(shapes["writes"], np.int32)
    writes[:, :, 1] = -1
    writes[:, :, 2] = np.arange(places)
    for number, source in enumerate(batch):
        given[number, : len(source.given)] = source.given
        writes[number, : source.places, 1] = source.row
    lengths = np.array([source.places for source in batch], np.int32)
    return {"source": given, "lengths": lengths, "writes": writes}
