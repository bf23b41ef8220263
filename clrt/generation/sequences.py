"""Sequences in the KV cache, and the inputs of a step that runs their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from clrt.generation.encoder_inputs import EncoderInput
from clrt.generation.page_pool import LONG, NOTHING
from clrt.generation.sampler import TokenSampler
from clrt.generation.speculation_policy import bucket_size
from clrt.ir.op import Array
from clrt.util.fast_dataclass import dataclass


@dataclass(eq=False)
class KvSequence:
    """A sequence in the KV cache: its tokens, and the pages with their keys and values.

    Attributes:
        tokens: Verified tokens, followed by draft tokens.
        row: Row of the page table.
        source: Encoder input for cross-attention; None for a decoder-only model.
        guessed: Number of draft tokens at the end of `tokens`.
        done: Number of leading tokens whose keys and values are in the cache.
        pages: Pages with the keys and values.
        declared: Number of leading pages that are registered in the page pool for reuse.
        content: Content id of the last registered page (`KvPagePool.register`).
        long_beyond: Maximum number of verified tokens for which keys have LongRoPE's rotary angles
            for short sequences; 0 if the model has only one set of rotary angles.
        long: Whether cached keys have LongRoPE's rotary angles for long sequences.
    """

    tokens: list[int]
    row: int
    source: EncoderInput | None = None
    guessed: int = 0
    done: int = 0
    pages: list[int] = field(default_factory=list)
    declared: int = 0
    content: int = NOTHING
    long_beyond: int = 0
    long: bool = False

    @property
    def start(self) -> int:
        """Content id before the first page: that of the encoder input, or `LONG`, or `NOTHING`."""
        if self.source is not None:
            return self.source.content
        return LONG if self.long else NOTHING

    @property
    def is_outgrown(self) -> bool:
        """Whether all tokens must run again with LongRoPE's rotary angles for long sequences.

        True if there are more than `long_beyond` verified tokens, and cached keys have the angles
        for short sequences.
        """
        return not self.long and 0 < self.long_beyond < self.known

    @property
    def most_guesses(self) -> int:
        """Maximum number of draft tokens with which the sequence has at most `long_beyond` tokens.

        More than 2**30 if `long_beyond` does not limit the sequence.
        """
        if self.long or not self.long_beyond or self.is_outgrown:
            return len(self.tokens) + (1 << 30)
        return self.long_beyond - self.known

    @property
    def left(self) -> int:
        """Number of tokens still to run; all tokens if keys must be recomputed (`is_outgrown`)."""
        return len(self.tokens) - (0 if self.is_outgrown else self.done)

    @property
    def all_left(self) -> int:
        """Number of tokens still to run, plus encoder positions still to be encoded."""
        return self.left + (0 if self.source is None else self.source.left)

    @property
    def known(self) -> int:
        """Number of verified tokens, without draft tokens."""
        return len(self.tokens) - self.guessed

    def guess(self, tokens: Sequence[int]) -> None:
        """Appends draft tokens to `tokens`; `commit` later replaces them by verified tokens."""
        self.tokens += tokens
        self.guessed += len(tokens)

    def commit(self, tokens: Sequence[int]) -> int:
        """Replaces the draft tokens by `tokens`, the verified tokens from that position on.

        Returns:
            Number of draft tokens accepted: leading draft tokens that equal the first `tokens`.
        """
        known, accepted = self.known, 0
        for guess, token in zip(self.tokens[known:], tokens, strict=False):
            if guess != token:
                break
            accepted += 1
        self.tokens[known:] = tokens
        self.guessed = 0
        self.done = min(self.done, known + accepted)
        return accepted


@dataclass(frozen=True)
class ScheduledSequence:
    """A sequence in one decoder step.

    Attributes:
        sequence: The sequence.
        count: Number of pending tokens of the sequence to run.
        samplers: One sampler for each of the last tokens to run; it chooses the token that
            follows. Each sampler gets an output row; () for no output.
    """

    sequence: KvSequence
    count: int
    samplers: Sequence[TokenSampler] = ()


def texts_of(part: ScheduledSequence) -> list[Sequence[int] | Array]:
    """Returns, for each sampler of a sequence, all tokens before the token that it chooses.

    Each element is () if no sampler of the sequence reads earlier tokens.
    """
    if not any(sampler.reads_text for sampler in part.samplers):
        return [()] * len(part.samplers)
    end = part.sequence.done + part.count
    tokens = np.array(part.sequence.tokens[:end], np.int32)
    return [tokens[: end - k] for k in reversed(range(len(part.samplers)))]


def filled(rows: Array) -> Array:
    """Pads `rows`, one or more, to their bucket size (`bucket_size`) by repeating row 0."""
    return np.concatenate([rows, np.resize(rows[:1], bucket_size(len(rows)) - len(rows))])


def long_input(parts: Sequence[ScheduledSequence], tokens: int) -> Array:
    """Returns the graph input `long`, which selects LongRoPE's rotary angles for each token.

    Args:
        parts: Sequences of the step.
        tokens: Number of tokens of the step, with padding.

    Returns:
        int32 `[tokens]`: 1 for tokens that have the angles for long sequences, else 0.
    """
    padded = np.zeros(tokens, np.int32)
    flags = np.repeat([part.sequence.long for part in parts], [part.count for part in parts])
    padded[: len(flags)] = flags
    return padded


def step_inputs(parts: Sequence[ScheduledSequence]) -> tuple[Array, Array, Array]:
    """Returns the graph inputs that describe the tokens of a step.

    Returns:
        `step`, int32 `[tokens, 3]`: token id, row of the page table (-1 for padding), position.
        `cross`, int32 `[tokens, 3]`: in column 1 the page table row of the encoder input, in column
        2 its last position. `rows`, int32: indices of the tokens that have an output row.
    """
    total = sum(part.count for part in parts)
    step = np.zeros((bucket_size(total), 3), np.int32)
    step[total:, 1] = -1
    cross = step.copy()
    wanted: list[int] = []
    at = 0
    for part in parts:
        sequence, end = part.sequence, at + part.count
        step[at:end, 0] = sequence.tokens[sequence.done : sequence.done + part.count]
        step[at:end, 1] = sequence.row
        step[at:end, 2] = np.arange(sequence.done, sequence.done + part.count)
        if sequence.source is not None:
            cross[at:end, 1] = sequence.source.row
            cross[at:end, 2] = sequence.source.places - 1
        at = end
        wanted += range(at - len(part.samplers), at)
    return step, cross, np.array(wanted, np.int32)
