"""Sequences in the KV cache, and the inputs of a step that runs their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from clrt.generation.encoder_inputs import EncoderInput
from clrt.generation.page_pool import LONG, NOTHING
from clrt.generation.sampler import TokenSampler
from clrt.generation.speculation_policy import bucket_size
from clrt.ir.op import Array


@dataclass(eq=False)
class KvSequence:
    """Tokens of a sequence, and the pages with the keys and values of those that were run.

    Attributes:
        tokens: Verified tokens, followed by draft tokens.
        row: Row of the page table.
        source: Encoder input for cross-attention; None for a decoder-only model.
        guessed: Number of draft tokens at the end.
        done: Number of tokens that were run.
        pages: Pages of the tokens that were run.
        declared: Number of pages registered in the pool.
        content: Content id of the last registered page (`KvPagePool.register`).
        long_beyond: Maximum number of tokens of a text whose keys have the rotary angles of short
            texts; 0 if all texts have the same.
        long: Whether the cached keys have the rotary angles of long texts.
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
        """Content id before the first page."""
        if self.source is not None:
            return self.source.content
        return LONG if self.long else NOTHING

    @property
    def is_outgrown(self) -> bool:
        """Whether the text is long, but its cached keys have the angles of short texts."""
        return not self.long and 0 < self.long_beyond < self.known

    @property
    def most_guesses(self) -> int:
        """Maximum number of draft tokens that do not turn a short text into a long one."""
        if self.long or not self.long_beyond or self.is_outgrown:
            return len(self.tokens) + (1 << 30)
        return self.long_beyond - self.known

    @property
    def left(self) -> int:
        """Number of tokens still to run: pending ones, or all if the sequence is outgrown."""
        return len(self.tokens) - (0 if self.is_outgrown else self.done)

    @property
    def all_left(self) -> int:
        """The same, plus encoder positions that the next step has to encode."""
        return self.left + (0 if self.source is None else self.source.left)

    @property
    def known(self) -> int:
        """Number of verified tokens."""
        return len(self.tokens) - self.guessed

    def guess(self, tokens: Sequence[int]) -> None:
        """Appends draft tokens, which are run like others until `DecoderEngine.settle`."""
        self.tokens += tokens
        self.guessed += len(tokens)

    def commit(self, tokens: Sequence[int]) -> int:
        """Replaces the draft tokens by the verified `tokens`; returns the number accepted."""
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
    """Work of one step for a sequence.

    Attributes:
        count: Number of tokens to run.
        samplers: One per output row: they choose the tokens after the last `len(samplers)` tokens.
    """

    sequence: KvSequence
    count: int
    samplers: Sequence[TokenSampler] = ()


def texts_of(part: ScheduledSequence) -> list[Sequence[int] | Array]:
    """Returns the tokens so far for each sampler; empty if no sampler reads them."""
    if not any(sampler.reads_text for sampler in part.samplers):
        return [()] * len(part.samplers)
    end = part.sequence.done + part.count
    tokens = np.array(part.sequence.tokens[:end], np.int32)
    return [tokens[: end - k] for k in reversed(range(len(part.samplers)))]


def filled(rows: Array) -> Array:
    """Pads `rows` to the bucket size by repeating row 0."""
    return np.concatenate([rows, np.resize(rows[:1], bucket_size(len(rows)) - len(rows))])


def long_input(parts: Sequence[ScheduledSequence], tokens: int) -> Array:
    """Returns the input `long`, int32 `[tokens]`: 1 for each token of a long text, 0 for others."""
    padded = np.zeros(tokens, np.int32)
    flags = np.repeat([part.sequence.long for part in parts], [part.count for part in parts])
    padded[: len(flags)] = flags
    return padded


def step_inputs(parts: Sequence[ScheduledSequence]) -> tuple[Array, Array, Array]:
    """Returns the inputs `step`, `cross` and `rows`; padding tokens have sequence row -1."""
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
