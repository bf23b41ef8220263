"""What a step runs: tokens of sequences, and where the choice of the next ones is made."""

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
    """Tokens, and the pages that hold the keys and values of those that were run.

    Attributes:
        tokens: All that are known, and guesses behind them.
        row: Of the table.
        source: What its cross-attention sees; None for a decoder alone.
        guessed: How many of the last tokens are guesses.
        done: How many tokens were run.
        pages: Their pages.
        declared: Of how many pages the pool knows the content.
        content: What the last of these holds (`KvPagePool.fill`).
        long_beyond: Maximum number of tokens of a text whose keys have the rotary angles of short
            texts; 0 if all texts have the same.
        long: Whether the keys in its pages have the angles of long texts.
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
        """The content in front of its first page."""
        if self.source is not None:
            return self.source.content
        return LONG if self.long else NOTHING

    @property
    def is_outgrown(self) -> bool:
        """Whether its cached keys have the angles of short texts, and it has become a long one."""
        return not self.long and 0 < self.long_beyond < self.known

    @property
    def most_guesses(self) -> int:
        """Maximum number of guesses: they must not make a long text of a short one."""
        if self.long or not self.long_beyond or self.is_outgrown:
            return len(self.tokens) + (1 << 30)
        return self.long_beyond - self.known

    @property
    def left(self) -> int:
        """How many tokens are to be run: those that were not, or all once it is outgrown."""
        return len(self.tokens) - (0 if self.is_outgrown else self.done)

    @property
    def all_left(self) -> int:
        """The same, with the places of its source that the next step encodes."""
        return self.left + (0 if self.source is None else self.source.left)

    @property
    def known(self) -> int:
        """How many tokens are no guesses."""
        return len(self.tokens) - self.guessed

    def guess(self, tokens: Sequence[int]) -> None:
        """Adds guesses, which are run like other tokens; `DecoderEngine.settle` ends them."""
        self.tokens += tokens
        self.guessed += len(tokens)

    def commit(self, tokens: Sequence[int]) -> int:
        """Puts tokens in the place of the guesses; how many of these were right."""
        known, right = self.known, 0
        for guess, token in zip(self.tokens[known:], tokens, strict=False):
            if guess != token:
                break
            right += 1
        self.tokens[known:] = tokens
        self.guessed = 0
        self.done = min(self.done, known + right)
        return right


@dataclass(frozen=True)
class ScheduledSequence:
    """What a step does for a sequence.

    Attributes:
        count: How many of its tokens it runs.
        samplers: Choose the tokens behind so many of the last ones; there is a row of outputs for
            each.
    """

    sequence: KvSequence
    count: int
    samplers: Sequence[TokenSampler] = ()


def texts_of(part: ScheduledSequence) -> list[Sequence[int] | Array]:
    """For each sampler the tokens so far, as far as it asks."""
    if not any(sampler.reads_text for sampler in part.samplers):
        return [()] * len(part.samplers)
    end = part.sequence.done + part.count
    tokens = np.array(part.sequence.tokens[:end], np.int32)
    return [tokens[: end - k] for k in reversed(range(len(part.samplers)))]


def filled(rows: Array) -> Array:
    """Rows, the first of them again and again behind them."""
    return np.concatenate([rows, np.resize(rows[:1], bucket_size(len(rows)) - len(rows))])


def long_input(parts: Sequence[ScheduledSequence], tokens: int) -> Array:
    """Returns the input `long`, int32 `[tokens]`: 1 for each token of a long text, 0 for others."""
    made = np.zeros(tokens, np.int32)
    found = np.repeat([part.sequence.long for part in parts], [part.count for part in parts])
    made[: len(found)] = found
    return made


def step_inputs(parts: Sequence[ScheduledSequence]) -> tuple[Array, Array, Array]:
    """`step`, `cross` and `rows`, inputs; tokens of no sequence make their number a round one."""
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
