"""Encoder inputs: checks, batches, and KV pages for cross-attention."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import NamedTuple, TypeAlias

import numpy as np

from clrt.errors import InputError
from clrt.generation.page_pool import NOTHING
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.ir.op import Array
from clrt.models.decoders.decoder import DecoderConfig
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

Given: TypeAlias = "Sequence[int] | Array"
"""Encoder input: tokens, or frames float32 `[frames, features]`."""

# Maximum number of positions of a batch, with padding, unless it holds one input only.
_MAX_BATCH_POSITIONS = 4096
# Maximum padding of an input in a batch: a fraction of the longest input, or a number of positions
# if that is more.
_PADDING, _FEW = 0.25, 16
NOWHERE = -1
"""Row of an input that is not cached."""


@dataclass(eq=False)
class EncoderInput:
    """An encoder input, and the pages with its keys and values for cross-attention.

    Attributes:
        given: The input: int32 `[tokens]`, or float32 `[frames, features]`.
        places: Number of encoder output positions.
        key: Digest of the input.
        row: Row of the page table; `NOWHERE` if the input is not cached.
        users: Reference count: sequences, and calls of `DecoderEngine.read`.
        pages: KV pages with the keys and values of the input.
        content: Content id of the last page (`KvPagePool.register`). The pages of a sequence that
            attends to this input continue from this id, since they depend on the input.
        done: Whether the input is encoded and its keys and values are in the pages.
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
        """Number of encoder positions still to be encoded: all, or 0 if the input is encoded."""
        return 0 if self.done else self.places

    @property
    def parts(self) -> list[tuple[bytes, int]]:
        """Identity of each page for `KvPagePool.register`: (digest, index of the page)."""
        return [(self.key, index) for index in range(ceil_div(self.places, PAGE_TOKENS))]

    def forget(self) -> None:
        """Marks the input as not encoded and drops its pages, after the cache was emptied."""
        self.pages, self.content, self.done = [], NOTHING, False


class CheckedSource(NamedTuple):
    """A checked encoder input.

    Attributes:
        given: int32 `[tokens]`, or float32 `[frames, features]`.
        places: Number of encoder output positions.
        key: Digest of `given`.
    """

    given: Array
    places: int
    key: bytes


def source_of(given: Given, encoder: DecoderConfig | None) -> CheckedSource:
    """Checks an encoder input and converts it to an array.

    Args:
        given: Encoder input: tokens, or frames `[frames, features]`.
        encoder: Configuration of the encoder; None if the model has none.

    Raises:
        InputError: The model has no encoder, or the input has a wrong shape, is empty or too long.
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
    # The digest is long enough that collisions of different frames can be ignored.
    key = hashlib.blake2b(array.tobytes(), digest_size=32).digest()
    return CheckedSource(array, places, key)


def batches_of(sources: Sequence[EncoderInput]) -> Iterator[list[EncoderInput]]:
    """Splits encoder inputs into batches of similar length; yields the longest inputs first."""
    batch: list[EncoderInput] = []
    for source in sorted(sources, key=lambda s: -s.places):
        longest = batch[0].places if batch else 0
        short = longest - source.places > max(_PADDING * longest, _FEW)
        if batch and (short or (len(batch) + 1) * longest > _MAX_BATCH_POSITIONS):
            yield batch
            batch = []
        batch.append(source)
    if batch:
        yield batch


def input_shapes(encoder: DecoderConfig, batch: int, places: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the encoder graph's inputs by name.

    Args:
        encoder: Configuration of the encoder.
        batch: Number of encoder inputs in the batch.
        places: Number of encoder output positions that each input is padded to.
    """
    source: tuple[int, ...] = (batch, places)
    if encoder.features:
        source = (batch, places * encoder.stride, encoder.features)
    return {"source": source, "lengths": (batch,), "writes": (batch, places, 3)}


def longest_shapes(encoder: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the encoder graph's inputs, by name, for a batch of maximum size."""
    return input_shapes(encoder, max(_MAX_BATCH_POSITIONS // encoder.context, 1), encoder.context)


def encoder_inputs(batch: Sequence[EncoderInput], encoder: DecoderConfig) -> dict[str, Array]:
    """Returns the encoder graph's input arrays by name for a batch, which may be empty."""
    places = max((source.places for source in batch), default=1)
    if places > _FEW and not encoder.features:
        # Rounding limits the number of input shapes, each of which needs a plan.
        places = ceil_div(places, _FEW) * _FEW
    shapes = input_shapes(encoder, len(batch), places)
    padded = np.zeros(shapes["source"], np.float32 if encoder.features else np.int32)
    writes = np.zeros(shapes["writes"], np.int32)
    writes[:, :, 1] = -1
    writes[:, :, 2] = np.arange(places)
    for number, source in enumerate(batch):
        padded[number, : len(source.given)] = source.given
        writes[number, : source.places, 1] = source.row
    lengths = np.array([source.places for source in batch], np.int32)
    return {"source": padded, "lengths": lengths, "writes": writes}
