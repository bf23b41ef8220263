"""Builds the inputs of a transformer from tokens, also for calibration and comparison."""

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
"""Inputs that a text model may have; the first two are required."""

# Calibration data: texts per batch; number of paragraphs, and of sentences; maximum tokens per
# text.
_BATCH = 16
_NUM_TEXTS = 384
_MAX_TOKENS = 256
# Batches on a CPU: maximum fraction of padding, above which shorter texts go to the next batch; and
# batch size in tokens up to which padding is ignored. Measured with MiniLM on mixed text: at 3 %,
# runs of 256 tokens and more take as long per token as larger ones, and padding falls from 6.6 to
# 2.5 %.
MAX_PADDING = 0.03
_MIN_BATCH_TOKENS = 256


def batch_spans(lengths: Sequence[int], size: int, max_padding: float) -> Iterator[tuple[int, int]]:
    """Splits texts into batches; yields the range (start, end) of text indices of each batch.

    Args:
        lengths: Number of tokens per text, in descending order.
        size: Maximum number of texts of a batch.
        max_padding: Maximum share of padding among the tokens of a batch, from 0 to 1; batches of
            at most `_MIN_BATCH_TOKENS` tokens may have more.
    """
    start = used = 0
    for end, length in enumerate(lengths):
        padded = (end - start + 1) * lengths[start]
        is_wasteful = padded - used - length > max_padding * padded
        if end - start == size or (padded > _MIN_BATCH_TOKENS and is_wasteful):
            yield start, end
            start, used = end, 0
        used += length
    if lengths:
        yield start, len(lengths)


def fixed_dims(specs: Sequence[TensorSpec]) -> tuple[int | None, int | None]:
    """Returns the batch size and sequence length that a model fixes; None for each dynamic one.

    Args:
        specs: The model's inputs.
    """
    shape = next((spec.shape for spec in specs), None)  # All inputs have the same shape.
    rows, tokens = shape if shape is not None and len(shape) == 2 else (None, None)
    return rows if isinstance(rows, int) else None, tokens if isinstance(tokens, int) else None


def model_feeds(
    batch: Sequence[Tokens],
    length: int,
    pad_id: int,
    specs: Sequence[TensorSpec],
    pads_left: bool = False,
) -> Feeds:
    """Builds the inputs of a transformer for a batch of texts.

    Args:
        batch: Tokens of each text, at least one text.
        length: Sequence length to pad to; a length that the model fixes overrides it.
        pad_id: Token id of padding.
        specs: The model's inputs.
        pads_left: Whether padding comes before the tokens.

    Returns:
        Arrays [rows, tokens] by input name. If the model fixes the batch size, missing rows
        repeat the last text.

    Raises:
        KeyError: The model has inputs other than `INPUTS`.
    """
    rows, tokens = fixed_dims(specs)
    length = tokens or length
    batch = [*batch, *[batch[-1]] * ((rows or 0) - len(batch))]
    mask = pad([np.ones_like(t.ids) for t in batch], 0, length, pads_left)
    arrays = {
        "input_ids": pad([t.ids for t in batch], pad_id, length, pads_left),
        MASK: mask,
        "position_ids": np.maximum(mask.cumsum(axis=1) - 1, 0),
        "token_type_ids": pad([t.type_ids for t in batch], 0, length, pads_left),
    }
    return {s.name: arrays[s.name].astype(s.dtype.numpy, copy=False) for s in specs}


def calibration_feeds(path: Path, specs: Sequence[TensorSpec]) -> Iterator[Feeds]:
    """Yields batches of English text (Python's help topics) for quantization calibration.

    Args:
        path: Model folder, ONNX file or compiled model, with its tokenizer.
        specs: The model's inputs.

    Raises:
        ModelError: The model has no tokenizer.
        InputError: The model has inputs other than `INPUTS`.
    """
    paragraphs = _paragraphs()
    sentences = [s for p in paragraphs for s in p.split(". ")]
    texts = [t for pool in (paragraphs, sentences) for t in pool[:: len(pool) // _NUM_TEXTS]]
    yield from _batches(path, specs, texts)


def unseen_feeds(path: Path, specs: Sequence[TensorSpec]) -> Feeds:
    """Returns one batch of English texts, none of which `calibration_feeds` yields.

    The texts have medium length; if the model fixes the sequence length, they are as long as fits.

    Args:
        path: Model folder, ONNX file or compiled model, with its tokenizer.
        specs: The model's inputs.

    Raises:
        ModelError: The model has no tokenizer.
        InputError: The model has inputs other than `INPUTS`, or no text is short enough for it.
    """
    paragraphs = _paragraphs()
    step = len(paragraphs) // _NUM_TEXTS
    batches = list(_batches(path, specs, paragraphs[step // 2 :: step]))
    if not batches:
        raise InputError("No text is as short as the model's inputs; pass inputs explicitly.")
    # At a fixed length the longest texts leave the least padding.
    return batches[-1 if fixed_dims(specs)[1] else len(batches) // 2]


def _paragraphs() -> list[str]:
    from pydoc_data.topics import topics

    return [p for text in topics.values() for p in text.split("\n\n") if len(p) > 40]


def _batches(path: Path, specs: Sequence[TensorSpec], texts: Sequence[str]) -> Iterator[Feeds]:
    """Yields the model inputs of batches of texts; texts are sorted by increasing length.

    Args:
        path: Model folder, ONNX file or compiled model, with its tokenizer.
        specs: The model's inputs.
        texts: Texts; texts of more than `_MAX_TOKENS` tokens, or than the model's fixed length, are
            skipped.

    Raises:
        ModelError: The model has no tokenizer.
        InputError: The model has inputs other than `INPUTS`.
    """
    odd = [s.name for s in specs if s.name not in INPUTS]
    if odd:
        raise InputError(f"No tokenizer makes the input '{odd[0]}'; pass inputs explicitly.")
    config = read_any_config(path)
    tokenizer = TextTokenizer(config)
    rows, length = fixed_dims(specs)
    size, longest = rows or _BATCH, min(length or _MAX_TOKENS, _MAX_TOKENS)
    tokens = sorted((t for t in tokenizer.encode(texts) if len(t) <= longest), key=len)
    for start in range(0, len(tokens), size):
        batch = tokens[start : start + size]
        yield model_feeds(batch, len(batch[-1]), tokenizer.pad_id, specs)
