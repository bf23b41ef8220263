"""Beam search for the most likely texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from clrt.errors import CancelledError, InputError
from clrt.generation.detokenize import TextStream
from clrt.generation.engine import DecoderEngine
from clrt.generation.forced_decoding import close_sequences, run_to_end
from clrt.generation.generation_state import likeliest
from clrt.generation.model_spec import LanguageModel
from clrt.generation.options import Sampling
from clrt.generation.result import GeneratedText, TextTimings, TokenLogprob
from clrt.generation.sampler import TokenSampler
from clrt.generation.scheduler import Scheduler, open_text
from clrt.generation.sequences import KvSequence
from clrt.generation.token_rules import NextTokenRules, new_tokens_limit, normalised
from clrt.generation.tool_calls import ExpectedCalls, with_calls
from clrt.ir.op import Array
from clrt.util.fast_dataclass import dataclass


@dataclass(eq=False)
class Beam:
    """A partial or finished text of a beam search.

    Attributes:
        tokens: Generated tokens, without the prompt.
        score: Sum of the tokens' log-probabilities, as changed by the rules for tokens.
        logprobs: Log-probability of each token, unchanged by rules.
        sequence: Sequence in the KV cache; None if not opened yet.
    """

    tokens: list[int]
    score: float
    logprobs: tuple[TokenLogprob, ...]
    sequence: KvSequence | None = None


@dataclass(eq=False)
class BeamSearch:
    """A beam search for the most likely continuations of a prompt.

    The score of a text is the sum of its log-probabilities, as changed by the rules of `Sampling`,
    divided by its number of tokens to the power `length_penalty`. A text is a result only once an
    end token or the length limit has ended it.

    Attributes:
        scheduler: Scheduler whose engine runs the steps.
        model: The language model.
        prompt: Prompt tokens; with `source` the decoder's start tokens.
        sampling: Options of the request.
        source: Encoder input; None for a decoder-only model.
        calls: Format and tools of tool calls to parse; None if none are expected.
        cancelled: Set to True by a caller to stop the search.

    Source: transformers' `_beam_search`.
    """

    scheduler: Scheduler
    model: LanguageModel
    prompt: Sequence[int]
    sampling: Sampling
    source: Array | None = None
    calls: ExpectedCalls | None = None
    cancelled: bool = False
    _beams: list[Beam] = field(default_factory=list)
    _finished: list[tuple[float, Beam]] = field(default_factory=list)
    _open: list[KvSequence] = field(default_factory=list)
    _computed: int | None = None

    def __post_init__(self) -> None:
        self._limit = new_tokens_limit(self.sampling, len(self.prompt), self.model.context)
        rule_args = self.model.ends, self.prompt, self._limit, self.source
        self._rules = NextTokenRules(self.sampling, *rule_args)

    @classmethod
    def of(
        cls,
        scheduler: Scheduler,
        model: LanguageModel,
        tokens: Sequence[int],
        sampling: Sampling,
        calls: ExpectedCalls | None = None,
    ) -> BeamSearch:
        """Creates a beam search for a prompt, not yet started.

        Args:
            scheduler: Scheduler whose engine runs the steps.
            model: The language model.
            tokens: Tokens of the prompt.
            sampling: Options of the request.
            calls: Format and tools of tool calls to parse; None if none are expected.

        Raises:
            InputError: The prompt is too long.
        """
        prompt, source = model.begin(tokens)
        return cls(scheduler, model, prompt, sampling, source, calls)

    def run(self) -> list[GeneratedText]:
        """Runs the search; returns the `num_return_sequences` texts of highest score, best first.

        Raises:
            InputError: The prompt is longer than the context, or the rules ban all tokens.
            OutOfMemoryError: The cache cannot hold all beams.
            CancelledError: The search was cancelled.
        """
        started = time.perf_counter()
        self._beams = [Beam([], 0.0, ())]
        first = self.scheduler.bulk(self._search)
        results = self._finished[: self.sampling.num_return_sequences]
        timings = first - started, time.perf_counter() - first
        return [self._result(beam, *timings) for _, beam in results]

    def _search(self) -> float:
        """Runs the search; returns the end time of its first step, by `time.perf_counter`.

        The time is 0 if there was no step.
        """
        first = 0.0
        try:
            while self._beams:
                if self.cancelled:
                    raise CancelledError("The beam search was cancelled.")
                logits = self.scheduler.exclusive(self._logits)
                self._choose(logits, len(self._beams[0].tokens) + 1)
                first = first or time.perf_counter()
        finally:
            close_sequences(self.scheduler, self._open)
        return first

    def _logits(self, engine: DecoderEngine) -> list[NDArray[np.float32]]:
        """Runs a decoder step; returns the next-token logits of each beam, float32 `[vocabulary]`.

        One continuation of a beam keeps the beam's sequence in the KV cache. Each other
        continuation opens a new sequence, which shares the full pages of the beam's sequence.
        """
        live = {b.sequence for b in self._beams}
        for sequence in [s for s in self._open if s not in live]:
            self._open.remove(sequence)
            engine.close(sequence)
        for beam in self._beams:
            if beam.sequence is None:
                beam.sequence = open_text(engine, [*self.prompt, *beam.tokens], self.source)
                self._open.append(beam.sequence)
        # The decoder's start tokens do not count as computed prompt tokens.
        before = engine.computed + (0 if self.source is None else len(self.prompt))
        sampler = TokenSampler(Sampling(), self.model.vocabulary)
        rows = run_to_end(self.scheduler, self._beam_sequences(), sampler, "logits")
        if self._computed is None:
            self._computed = engine.computed - before
        return rows

    def _beam_sequences(self) -> list[KvSequence]:
        return [b.sequence for b in self._beams if b.sequence is not None]

    def _choose(self, logits: Sequence[NDArray[np.float32]], length: int) -> None:
        """Replaces the running beams by their best continuations; by none if the search is over.

        Args:
            logits: Next-token logits of each beam, float32 `[vocabulary]`.
            length: Number of generated tokens of each beam, including the next one.
        """
        count, ends, limit = self.sampling.num_beams, self.model.ends, self._limit
        candidates = self._candidates(logits, max(2, 1 + len(ends)) * count)
        going: list[Beam] = []
        for rank, (score, parent, token, logprob) in enumerate(candidates):
            ended = token in ends or length >= limit
            if ended and rank >= count:
                continue
            if not ended and len(going) == count:
                continue
            top = likeliest(logits[parent], self.sampling.logprobs)
            before = self._beams[parent]
            logprobs = (*before.logprobs, TokenLogprob(token, logprob, top))
            beam = Beam([*before.tokens, token], score, logprobs)
            if ended:
                self._finished.append((self._mean(score, length), beam))
            else:
                going.append(self._continue_parent(beam, before))
        if not going and not self._finished:
            raise InputError("No token can follow: the rules for beams ban all of them.")
        self._finished.sort(key=lambda found: -found[0])
        del self._finished[count:]
        if going and self._is_over(going[0].score, length):
            going = []
        self._beams = going

    def _mean(self, score: float, length: int) -> float:
        """Returns `score` divided by `length` to the power `length_penalty`."""
        return float(score / length**self.sampling.length_penalty)

    def _is_over(self, best: float, length: int) -> bool:
        """Whether no running beam can still become a result.

        Args:
            best: Highest score of a running beam, a sum of log-probabilities.
            length: Number of generated tokens of each running beam.
        """
        options = self.sampling
        if len(self._finished) < options.num_beams:
            return False
        if options.early_stopping is True:
            return True
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = self._limit
        return self._mean(best, length) <= self._finished[-1][0]

    def _candidates(
        self, logits: Sequence[NDArray[np.float32]], most: int
    ) -> list[tuple[float, int, int, float]]:
        """Returns the best continuations of all beams by one token, best first.

        Args:
            logits: Next-token logits of each beam, float32 `[vocabulary]`.
            most: Maximum number of continuations.

        Returns:
            (score with the token, beam index, token, log-probability of the token) of each
            continuation.
        """
        candidates = []
        for index, (beam, row) in enumerate(zip(self._beams, logits, strict=True)):
            finite = np.nan_to_num(row, nan=-np.inf, neginf=-np.inf)
            logprobs = normalised(finite.astype(np.float64))
            scores = self._rules.scores(logprobs.copy(), [*self.prompt, *beam.tokens])
            for token, score in _best(scores, most):
                candidates.append((beam.score + score, index, token, float(logprobs[token])))
        return sorted(candidates, key=lambda c: (-c[0], c[1], c[2]))[:most]

    def _continue_parent(self, beam: Beam, parent: Beam) -> Beam:
        """Moves the KV sequence of `parent` to `beam` and adds the last token; returns `beam`.

        Does nothing if another beam already got the sequence of `parent`.
        """
        sequence, parent.sequence = parent.sequence, None
        if sequence is not None:
            sequence.tokens.append(beam.tokens[-1])
            beam.sequence = sequence
        return beam

    def _result(self, beam: Beam, prompt_s: float, tokens_s: float) -> GeneratedText:
        """Returns the text of a beam with its timings in seconds."""
        ended = beam.tokens[-1] in self.model.ends
        kept_tokens = self.calls.format.kept_tokens if self.calls else ()
        text = TextStream(self.model.tokenizer, kept=kept_tokens)
        text_tokens = beam.tokens[:-1] if ended and not self.sampling.include_stop else beam.tokens
        pieces = [*map(text.push, text_tokens), text.finish()]
        timings = TextTimings(0.0, prompt_s, self._computed or 0, tokens_s, len(beam.tokens))
        result = GeneratedText(
            "".join(pieces),
            tuple(beam.tokens),
            "stop" if ended else "length",
            len(self.prompt if self.source is None else self.source),
            beam.logprobs if self.sampling.logprobs else None,
            timings,
        )
        return with_calls(result, self.calls)


def _best(scores: NDArray[np.float64], most: int) -> list[tuple[int, float]]:
    """Returns (token, score) of the `most` highest scores above -inf, highest first."""
    count = min(most, len(scores))
    tokens = np.argpartition(-scores, count - 1)[:count]
    order = tokens[np.lexsort((tokens, -scores[tokens]))]
    return [(int(token), float(scores[token])) for token in order if scores[token] > -np.inf]
