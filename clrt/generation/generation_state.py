"""State of one text being generated: prompt, tokens and text chunks so far, end conditions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import field, replace
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
from clrt.util.fast_dataclass import dataclass


@dataclass(eq=False)
class GenerationState:
    """State of one text being generated.

    The scheduler appends tokens from any thread, while readers watch `pieces` and `reason`.

    Attributes:
        prompt: Prompt tokens, one or more; with `source` the decoder's start tokens.
        sampler: Chooses the next token.
        limit: Maximum number of generated tokens.
        ends: Token ids that end the text.
        text: Detokenizer of the generated tokens.
        rule: Constraint that the text must match; None for none.
        calls: Format and tools of tool calls to parse; None for none.
        source: Encoder input: tokens or frames; None for a decoder-only model.
        tokens: Generated tokens, including a final end token.
        pieces: Text chunk that became certain with each token; may be "".
        logprobs: Log-probability per generated token; empty if not requested.
        reason: Why generation ended; None while it runs.
        error: Error that ended generation; None for none.
        sequence: Sequence in the KV cache; None while queued.
        computed: Number of prompt tokens, or of encoder positions, that the cache did not hold;
            None before the start.
        asked_s: Time of the request, by `time.perf_counter`.
        first_s: Time of the first token, by `time.perf_counter`; 0 before the first token.
        last_s: Time of the last token so far, by `time.perf_counter`; 0 before the first token.
        reader: Weak reference to the reader; generation ends once the reader is garbage-collected.
        drafted: Number of draft tokens proposed.
        accepted: Number of draft tokens accepted.
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
        """Resets stop matcher, detokenizer and constraint to before the first generated token.

        Keeps prompt and generated tokens.
        """
        sampling = self.sampler.sampling
        self._stops = StopMatcher(sampling.stop, self.ends, sampling.include_stop)
        self.text = self.text.anew()
        self.rule = None if self._first_rule is None else self._first_rule.copy()

    @property
    def has_ended(self) -> bool:
        """Whether generation has ended, or its reader was garbage-collected."""
        return self.reason is not None or (self.reader is not None and self.reader() is None)

    def rewind(self, context: int) -> None:
        """Recovers after an exception interrupted the addition of a token.

        Drops tokens without a text chunk, and rebuilds detokenizer, stop matcher and constraint
        from the remaining tokens.

        Args:
            context: Maximum number of tokens of prompt and generated text.
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
        """Creates the state of a generation that has not started.

        Args:
            prompt: Prompt tokens; with `source` the decoder's start tokens.
            sampling: Options of the request.
            vocabulary: Number of logits.
            ends: Token ids that end the text.
            tokenizer: Tokenizer of the model.
            limit: Maximum number of generated tokens.
            rule: Constraint that the text must match; None for none.
            number: Index among the texts for one prompt; added to the seed.
            calls: Format and tools of tool calls to parse; None for none.
            source: Encoder input; None for a decoder-only model.
        """
        sampler = TokenSampler(sampling, vocabulary, len(prompt))
        sampler.rules = NextTokenRules.of(sampling, ends, prompt, limit, source)
        if sampling.seed is not None:
            sampler.seed = (sampling.seed + number) % (1 << 64)
        text = TextStream(tokenizer, kept=calls.format.kept_tokens if calls else ())
        return cls(list(prompt), sampler, limit, ends, text, rule, calls, source)

    @property
    def top(self) -> int:
        """Number of most likely tokens to report per generated token; 0 for no such report."""
        return self.sampler.sampling.logprobs

    def text_from(self, first: int) -> list[int]:
        """Returns tokens `first`, `first + 1`, … of the prompt followed by the generated tokens."""
        return [*self.prompt[first:], *self.tokens[max(first - len(self.prompt), 0) :]]

    def prepare(self, guesses: Sequence[int] = ()) -> tuple[list[int], list[TokenSampler]]:
        """Selects the draft tokens and samplers of the next step.

        Args:
            guesses: Proposed draft tokens.

        Returns:
            Draft tokens, and samplers. The draft tokens are those before the first that ends the
            text or violates the constraint. There is one sampler for the token after the last
            verified token, and one for the token after each returned draft token.

        Raises:
            InputError: The constraint takes too much work.
        """
        end = next((k for k, guess in enumerate(guesses) if guess in self.ends), len(guesses))
        if self.rule is None:
            return list(guesses[:end]), [self.sampler] * (end + 1)
        samplers = [self._constrained(self.rule)]
        rule = self.rule.copy() if end else self.rule
        try:
            for guess in guesses[:end]:
                rule.accept(guess)
                if rule.is_done:
                    break
                samplers.append(self._constrained(rule))
        except InputError:  # the constraint forbids a draft token
            pass
        return list(guesses[: len(samplers) - 1]), samplers

    def _constrained(self, rule: Constraint) -> TokenSampler:
        return replace(self.sampler, allowed=rule.allowed())

    def take(
        self, token: int, logprob: float, logits: NDArray[np.float32] | None, room: int
    ) -> None:
        """Appends a generated token, and the tokens that the constraint forces after it.

        Forced tokens are not added if log-probabilities are requested.

        Args:
            token: Id of the token.
            logprob: Log-probability of the token.
            logits: float32 `[vocabulary]`, to report the most likely tokens; None if not requested.
            room: Number of tokens that still fit into the context after this one.

        Raises:
            InputError: The constraint takes too much work.
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
        """Appends a token and its text chunk; sets `reason` if the text ends with it.

        Args:
            token: Id of the token.
            room: Number of tokens that still fit into the context after this one.
        """
        self.tokens.append(token)
        done = False
        if self.rule is not None and token not in self.ends:
            self.rule.accept(token)
            done = self.rule.is_done
        piece, reason = self._piece(token)
        if reason is None and (done or room < 1 or len(self.tokens) >= self.limit):
            piece += self._remaining_text()
            reason = "constraint" if done else "length"
            if self._stops.matched is not None:
                reason = "stop"
        self.pieces.append(piece)
        self.reason = self.reason or reason

    def _piece(self, token: int) -> tuple[str, FinishReason | None]:
        """Returns (text that is certain now, finish reason) after a generated token.

        The reason is "stop" if a stop string or an end token ended the text, else None.
        """
        if token not in self.ends:
            piece = self._stops.push(self.text.push(token))
        elif self.sampler.sampling.include_stop:
            piece = self._stops.push(self.text.push(token) + self.text.finish(), token)
        else:  # text before an end token may complete a stop string
            piece = self._stops.push(self.text.finish())
            piece += self._stops.push("", token)
        return piece, None if self._stops.matched is None else "stop"

    def _remaining_text(self) -> str:
        return self._stops.push(self.text.finish()) + self._stops.finish()

    def result(self, load_s: float = 0.0) -> GeneratedText:
        """Returns the text generated so far with its statistics and parsed tool calls.

        Args:
            load_s: Seconds spent loading the model.
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
        result = GeneratedText(
            "".join(self.pieces),
            tuple(self.tokens),
            reason,
            len(self.prompt if self.source is None else self.source),
            tuple(self.logprobs[:count]) if self.top else None,
            timings,
        )
        return with_calls(result, self.calls)


def likeliest(logits: NDArray[np.float32], count: int) -> tuple[tuple[int, float], ...]:
    """Returns the `count` most likely tokens with their log-probabilities, likeliest first.

    Args:
        logits: float32 `[vocabulary]`.

    Numerics: sums in float64.
    """
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    count = min(count, len(wide))
    tokens = np.argpartition(-wide, count - 1)[:count] if count else np.zeros(0, np.int64)
    order = tokens[np.lexsort((tokens, -wide[tokens]))]
    return tuple((int(token), float(wide[token])) for token in order)
