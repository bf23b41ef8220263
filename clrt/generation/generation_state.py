"""A text on its way: its prompt, its tokens and pieces so far, and where it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from clrt.errors import ClrtError, InputError
from clrt.generation.constraints import Constraint
from clrt.generation.detokenize import TextStream, TokenNames
from clrt.generation.options import Sampling
from clrt.generation.result import FinishReason, GeneratedText, TextTimings, TokenLogprob
from clrt.generation.sampler import TokenSampler
from clrt.generation.sequences import KvSequence
from clrt.generation.stops import StopMatcher
from clrt.generation.token_rules import NextTokenRules
from clrt.generation.tool_calls import ExpectedCalls, with_calls
from clrt.ir.op import Array


@dataclass(eq=False)
class GenerationState:
    """One text that is generated.

    A scheduler adds to it, in any thread; `pieces` and `reason` are read while it does.

    Attributes:
        prompt: Tokens, one or more; with a source those that the text begins with.
        sampler: Chooses tokens.
        limit: The most tokens that are made.
        ends: Tokens that end the text.
        rule: What the text keeps to.
        calls: Calls of tools that it may have; None for none.
        source: What the encoder reads; None for a decoder alone.
        tokens: What was made so far; a token that ends the text is the last of them.
        pieces: The text of each token as far as it is certain; perhaps empty.
        logprobs: Of the tokens.
        reason: Why it ended; None while it goes on.
        error: What went wrong, if so.
        sequence: Where its tokens are run; None while it waits.
        computed: Tokens of the prompt that were, or are to be, run.
        asked_s, first_s, last_s: When it was asked for, and its first and last token came.
        reader: Who reads it; once that is garbage nobody does.
        drafted, accepted: How many tokens were guessed, and how many of them were right.
    """

    prompt: list[int]
    sampler: TokenSampler
    limit: int
    ends: frozenset[int]
    text: TextStream
    rule: Constraint | None = None
    calls: ExpectedCalls | None = None
    source: Array | None = None
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason | None = None
    error: ClrtError | None = None
    sequence: KvSequence | None = None
    computed: int | None = None
    asked_s: float = field(default_factory=time.perf_counter)
    first_s: float = 0.0
    last_s: float = 0.0
    drafted: int = 0
    accepted: int = 0
    reader: ref[object] | None = None

    def __post_init__(self) -> None:
        self._first_rule = self.rule
        self._begin()

    def _begin(self) -> None:
        """Resets stops, text and rule to the start of the answer; the tokens stay."""
        sampling = self.sampler.sampling
        self._stops = StopMatcher(sampling.stop, self.ends, sampling.include_stop)
        self.text = self.text.anew()
        self.rule = None if self._first_rule is None else self._first_rule.copy()

    @property
    def has_ended(self) -> bool:
        """Whether no more tokens are wanted."""
        return self.reason is not None or (self.reader is not None and self.reader() is None)

    def rewind(self, context: int) -> None:
        """Goes on behind the last token that has its piece, as an exception may have come in the
        midst of one.

        Args:
            context: The most tokens with the prompt.
        """
        again = copy(self)
        again._begin()
        again.tokens, again.pieces, again.reason = [], [], None
        room = context - len(self.prompt)
        for number, token in enumerate(self.tokens[: len(self.pieces)], start=1):
            again._add(token, room - number)
        self.text, self._stops, self.rule = again.text, again._stops, again.rule
        self.tokens, self.logprobs = again.tokens, self.logprobs[: len(again.tokens)]
        self.reason = self.reason or again.reason

    @classmethod
    def of(
        cls,
        prompt: Sequence[int],
        sampling: Sampling,
        vocabulary: int,
        ends: frozenset[int],
        tokenizer: TokenNames,
        limit: int,
        rule: Constraint | None = None,
        number: int = 0,
        calls: ExpectedCalls | None = None,
        source: Array | None = None,
    ) -> GenerationState:
        """An answer to a prompt.

        Args:
            limit: Maximum number of new tokens.
            number: Which of several to one prompt: each draws other tokens.
            source: What the encoder reads.
        """
        sampler = TokenSampler(sampling, vocabulary, len(prompt))
        sampler.rules = NextTokenRules.of(sampling, ends, prompt, limit, source)
        if sampling.seed is not None:
            sampler.seed = (sampling.seed + number) % (1 << 64)
        text = TextStream(tokenizer, kept=calls.format.kept_tokens if calls else ())
        return cls(list(prompt), sampler, limit, ends, text, rule, calls, source)

    @property
    def top(self) -> int:
        """How many of the likeliest tokens are told of at each place; 0 for no log-probability."""
        return self.sampler.sampling.logprobs

    def text_from(self, first: int) -> list[int]:
        """The tokens of prompt and answer from a place on."""
        return [*self.prompt[first:], *self.tokens[max(first - len(self.prompt), 0) :]]

    def prepare(self, guesses: Sequence[int] = ()) -> tuple[list[int], list[TokenSampler]]:
        """Before its next tokens are chosen: behind the last one, and behind each guess.

        Returns:
            The guesses up to one that the text cannot go on behind, and a sampler for each place.

        Raises:
            InputError: The rule takes too much work.
        """
        end = next((k for k, guess in enumerate(guesses) if guess in self.ends), len(guesses))
        if self.rule is None:
            return list(guesses[:end]), [self.sampler] * (end + 1)
        samplers = [self._ruled(self.rule)]
        rule = self.rule.copy() if end else self.rule
        try:
            for guess in guesses[:end]:
                rule.accept(guess)
                if rule.is_done:
                    break
                samplers.append(self._ruled(rule))
        except InputError:  # a guess that the rule does not allow
            pass
        return list(guesses[: len(samplers) - 1]), samplers

    def _ruled(self, rule: Constraint) -> TokenSampler:
        return replace(self.sampler, allowed=rule.allowed())

    def take(
        self, token: int, logprob: float, logits: NDArray[np.float32] | None, room: int
    ) -> None:
        """Goes on with a token, and with those that the rule leaves no choice about.

        These are not looked for where log-probabilities are asked for.

        Args:
            logits: float32 `[vocabulary]`, of which the likeliest are told of.
            room: How many more there can be after it.

        Raises:
            InputError: The rule takes too much work.
        """
        self.last_s = time.perf_counter()
        self.first_s = self.first_s or self.last_s
        if self.top:
            top = () if logits is None else likeliest(logits, self.top)
            self.logprobs.append(TokenLogprob(token, logprob, top))
        self._add(token, room)
        if self.rule is None or self.top or self.reason is not None:
            return
        for number, forced in enumerate(self.rule.forced(), start=1):
            self._add(forced, room - number)
            if self.reason is not None:
                return

    def _add(self, token: int, room: int) -> None:
        """One more token, with its text, and perhaps the end."""
        self.tokens.append(token)
        done = False
        if self.rule is not None and token not in self.ends:
            self.rule.accept(token)
            done = self.rule.is_done
        piece, reason = self._piece(token)
        if reason is None and (done or room < 1 or len(self.tokens) >= self.limit):
            piece += self._rest()
            reason = "constraint" if done else "length"
            if self._stops.matched is not None:
                reason = "stop"
        self.pieces.append(piece)
        self.reason = self.reason or reason

    def _piece(self, token: int) -> tuple[str, FinishReason | None]:
        """What is certain of the text with one more token, and whether it ends it."""
        if token not in self.ends:
            piece = self._stops.push(self.text.push(token))
        elif self.sampler.sampling.include_stop:
            piece = self._stops.push(self.text.push(token) + self.text.finish(), token)
        else:  # of the text before it a stop text may be the end
            piece = self._stops.push(self.text.finish())
            piece += self._stops.push("", token)
        return piece, None if self._stops.matched is None else "stop"

    def _rest(self) -> str:
        return self._stops.push(self.text.finish()) + self._stops.finish()

    def result(self, load_s: float = 0.0) -> GeneratedText:
        """What has come of it.

        Args:
            load_s: Seconds that it waited for the model.
        """
        reason = self.reason or "cancelled"
        count = len(self.tokens)
        timings = TextTimings(
            load_s,
            max(self.first_s - self.asked_s, 0.0),
            self.computed or 0,
            self.last_s - self.first_s,
            count,
            self.drafted,
            self.accepted,
        )
        made = GeneratedText(
            "".join(self.pieces),
            tuple(self.tokens),
            reason,
            len(self.prompt if self.source is None else self.source),
            tuple(self.logprobs[:count]) if self.top else None,
            timings,
        )
        return with_calls(made, self.calls)


def likeliest(logits: NDArray[np.float32], count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens with their log-probabilities, likeliest first.

    Args:
        logits: float32 `[vocabulary]`.

    Numerics: sums of float64.
    """
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    count = min(count, len(wide))
    found = np.argpartition(-wide, count - 1)[:count] if count else np.zeros(0, np.int64)
    order = found[np.lexsort((found, -wide[found]))]
    return tuple((int(token), float(wide[token])) for token in order)
