"""Tokens as the inputs of a transformer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.runtime.execution.signature import TensorSpec
from clrt.text.config import read_any_config
from clrt.text.pooling import MASK
from clrt.text.tokenize import TextTokenizer, Tokens, pad

Feeds = dict[str, NDArray[Any]]

INPUTS = ("input_ids", MASK, "token_type_ids", "position_ids")
"""What a text model may take; it takes the first two in any case."""

_BATCH = 16
_TEXTS = 384  # of paragraphs, and of sentences
_LONGEST = 256


def fixed_dims(specs: Sequence[TensorSpec]) -> tuple[int | None, int | None]:
    """(rows, tokens) of every run; each is None where the model does not fix it."""
    shape = next((spec.shape for spec in specs), None)  # all have the same
    rows, tokens = shape if shape is not None and len(shape) == 2 else (None, None)
    return rows if isinstance(rows, int) else None, tokens if isinstance(tokens, int) else None


def model_feeds(
    batch: Sequence[Tokens],
    length: int,
    pad_id: int,
    specs: Sequence[TensorSpec],
    pads_left: bool = False,
) -> Feeds:
    """The inputs of a transformer for a batch, padded at the right or the left.

    Where the model fixes its dims, missing rows repeat the last text.

    Raises:
        KeyError: The model takes more than `INPUTS`.
    """
    rows, tokens = fixed_dims(specs)
    length = tokens or length
    batch = [*batch, *[batch[-1]] * ((rows or 0) - len(batch))]
    mask = pad([np.ones_like(t.ids) for t in batch], 0, length, pads_left)
    made = {
        "input_ids": pad([t.ids for t in batch], pad_id, length, pads_left),
        MASK: mask,
        "position_ids": np.maximum(mask.cumsum(axis=1) - 1, 0),
        "token_type_ids": pad([t.type_ids for t in batch], 0, length, pads_left),
    }
    return {s.name: made[s.name].astype(s.dtype.numpy, copy=False) for s in specs}


def calibration_feeds(path: Path, specs: Sequence[TensorSpec]) -> Iterator[Feeds]:
    """Batches of real text for a model with a tokenizer: the help topics that come with Python.

    Raises:
        ModelError: No tokenizer lies with the model.
        InputError: The model takes other inputs than a tokenizer makes.
    """
    paragraphs = _paragraphs()
    sentences = [s for p in paragraphs for s in p.split(". ")]
    texts = [t for pool in (paragraphs, sentences) for t in pool[:: len(pool) // _TEXTS]]
    yield from _batches(path, specs, texts)


def unseen_feeds(path: Path, specs: Sequence[TensorSpec]) -> Feeds:
    """One batch of texts of medium length, none of which `calibration_feeds` has.

    Raises:
        ModelError, InputError: As `calibration_feeds`.
    """
    paragraphs = _paragraphs()
    step = len(paragraphs) // _TEXTS
    batches = list(_batches(path, specs, paragraphs[step // 2 :: step]))
    if not batches:
        raise InputError("No text is as short as the model's inputs; give inputs of your own.")
    # At a fixed length the longest texts leave the least padding.
    return batches[-1 if fixed_dims(specs)[1] else len(batches) // 2]


def _paragraphs() -> list[str]:
    from pydoc_data.topics import topics

    return [p for text in topics.values() for p in text.split("\n\n") if len(p) > 40]


def _batches(path: Path, specs: Sequence[TensorSpec], texts: Sequence[str]) -> Iterator[Feeds]:
    """Batches of texts of similar length. Texts too long for the model are left out."""
    odd = [s.name for s in specs if s.name not in INPUTS]
    if odd:
        raise InputError(f"No tokenizer makes the input '{odd[0]}'; give inputs of your own.")
    config = read_any_config(path)
    tokenizer = TextTokenizer(config)
    rows, length = fixed_dims(specs)
    size, longest = rows or _BATCH, min(length or _LONGEST, _LONGEST)
    tokens = sorted((t for t in tokenizer.encode(texts) if len(t) <= longest), key=len)
    for start in range(0, len(tokens), size):
        batch = tokens[start : start + size]
        yield model_feeds(batch, len(batch[-1]), tokenizer.pad_id, specs)
