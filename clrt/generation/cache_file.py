"""Files of prompt caches: keys and values that several processes can reuse."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from clrt.errors import InputError, ModelError
from clrt.formats.safetensors import DTYPES, PADDING, Table, read_header
from clrt.generation.engine import CHUNK
from clrt.generation.page_pool import LONG, NOTHING
from clrt.generation.scheduler import Scheduler
from clrt.generation.sequences import ScheduledSequence
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.ir.op import Array
from clrt.util.files import atomic_write

_FORMAT = "clrt-cache"
_ANGLES = "angles"
# Metadata for each content id before the first page.
_STARTS: dict[int, dict[str, str]] = {NOTHING: {}, LONG: {_ANGLES: "long"}}


def compute_pages(scheduler: Scheduler, tokens: Sequence[int]) -> tuple[Array, int]:
    """Computes the keys and values of a prompt, and reads its full pages from the device.

    Must be called within `scheduler.exclusive`.

    Returns:
        The pages, `[pages, elements]`, and the content id before the first page: `LONG` if keys
        have the LongRoPE rotary angles for long sequences, else `NOTHING`.

    Raises:
        InputError: The prompt does not fill a page, or is longer than the context.
        OutOfMemoryError: The prompt does not fit into the cache.
    """
    count = len(tokens) // PAGE_TOKENS
    if not count:
        raise InputError(
            f"The prompt has {len(tokens)} tokens, and a cache holds pages of {PAGE_TOKENS}; "
            "there is nothing to save."
        )
    engine = scheduler.engine
    sequence = engine.open(tokens)
    try:
        while sequence.done < count * PAGE_TOKENS:
            remaining = count * PAGE_TOKENS - sequence.done
            part = ScheduledSequence(sequence, min(remaining, CHUNK))
            scheduler.with_room(partial(engine.step, [part]))
        return engine.cache.read(sequence.pages[:count]), sequence.start
    finally:
        engine.close(sequence)


def write_cache(
    path: Path, fingerprint: str, tokens: Sequence[int], pages: Array, start: int = NOTHING
) -> int:
    """Writes KV pages and their tokens to a file; returns the number of tokens written.

    Args:
        path: File to write.
        fingerprint: Hash of the model (`LanguageModel.fingerprint`).
        tokens: Prompt tokens; tokens after the last full page are left out.
        pages: KV pages of the tokens, `[pages, elements]`.
        start: `LONG` if keys have the LongRoPE rotary angles for long sequences, which the file
            then records; else `NOTHING`.

    Raises:
        InputError: The file cannot be written.
    """
    arrays = {"tokens": np.array(tokens[: len(pages) * PAGE_TOKENS], np.int32), "pages": pages}
    table = Table({"format": _FORMAT, "fingerprint": fingerprint, **_STARTS[start]})
    parts = [part for name, array in arrays.items() for part in table.add(name, array)]
    with atomic_write(path) as stream:
        stream.write(table.encode())
        for part in parts:
            stream.write(part)
    return len(pages) * PAGE_TOKENS


def read_cache(path: Path, fingerprint: str, like: Array) -> tuple[list[int], Array, int]:
    """Reads a prompt cache file that `write_cache` wrote.

    Args:
        path: File to read.
        fingerprint: Hash of the model that the file must be from.
        like: Array `[0, elements]` with the model's page size and dtype.

    Returns:
        (tokens, KV pages `[pages, elements]`, content id before the first page).

    Raises:
        ModelError: The file is missing, damaged or from another model.
    """
    header = read_header(path)
    if header.metadata.get("format") != _FORMAT:
        raise ModelError(f"'{path}' is not a prompt cache; pass a file written by `save_cache`.")
    entries = {name: e for name, e in header.tensors.items() if not name.startswith(PADDING)}
    fits = header.metadata.get("fingerprint") == fingerprint and entries.keys() == {
        "tokens",
        "pages",
    }
    if fits:
        pages, tokens = entries["pages"], entries["tokens"]
        fits = (
            DTYPES.get(pages.dtype) == like.dtype
            and tokens.dtype == "I32"
            and pages.shape[1:] == like.shape[1:]
            and tokens.shape == (pages.shape[0] * PAGE_TOKENS,)
        )
    if not fits:
        raise ModelError(
            f"'{path}' is the cache of another model, or of this one with another `cache` dtype; "
            "save it again with this one."
        )
    raw = header.map()
    numbers = raw[tokens.start : tokens.stop].view(np.int32).tolist()
    start = LONG if header.metadata.get(_ANGLES) == "long" else NOTHING
    return numbers, raw[pages.start : pages.stop].view(like.dtype).reshape(pages.shape), start
