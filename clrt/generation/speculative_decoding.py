"""Speculative decoding: draft tokens by prompt lookup or by a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from clrt.generation.draft_model import DraftModel
from clrt.generation.generation_state import GenerationState
from clrt.generation.prompt_lookup import LookupIndex
from clrt.generation.speculation_policy import AcceptanceRate, DecodeTimeModel, DraftBudget
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.util.fast_dataclass import dataclass

# Lookup matches of at least these lengths, in tokens, have acceptance rates of their own.
_MATCH_CLASSES = (3, 6)


@dataclass(eq=False)
class _DraftStatistics:
    """Lookup index and acceptance rates of draft tokens of one generation.

    Attributes:
        trusts: Acceptance rates: first of prompt lookup, one per range of match lengths; the last
            rate is the draft model's.
        index: Lookup index of encoder tokens (if any), prompt and generated text.
        before: Number of encoder tokens in the index.
        trust: Acceptance rate of the kind of draft tokens made last.
    """

    trusts: list[AcceptanceRate]
    index: LookupIndex = field(default_factory=LookupIndex)
    before: int = 0
    trust: AcceptanceRate = field(default_factory=AcceptanceRate)


class SpeculativeDecoder:
    """Proposes draft tokens for generations, as many as are predicted to save time.

    Attributes:
        costs: Predicts step times of the model.

    Args:
        context: Maximum number of tokens of prompt and generated text.
        drafter: Draft model; None for prompt lookup only.
    """

    def __init__(self, context: int, drafter: DraftModel | None = None) -> None:
        self.costs = DecodeTimeModel()
        self._context = context
        self._drafter = drafter
        self._usual = [AcceptanceRate.of_all() for _ in range(len(_MATCH_CLASSES) + 2)]
        self._texts: dict[GenerationState, _DraftStatistics] = {}
        self._disabled: set[GenerationState] = set()

    def guess(self, running: Sequence[GenerationState]) -> dict[GenerationState, list[int]]:
        """Proposes draft tokens for the next step; generations without any are left out.

        Args:
            running: All generations that the next step runs.

        Raises:
            ClrtError: A run of the draft model failed.
        """
        asking = {a: n for a in running if (n := self._max_drafts(a))}
        if not asking:
            return {}
        step = DraftBudget(self.costs, sum(map(_pending_tokens, running)), len(running))
        drafts: dict[GenerationState, list[int]] = {}
        drafting: dict[GenerationState, int] = {}
        for answer, limit in asking.items():
            text = self._text_of(answer)
            guesses = self._look_up(answer, text, limit, step)
            if guesses:
                drafts[answer] = guesses
            elif self._drafter is not None and self._drafter.follows(answer):
                text.trust = text.trusts[-1]
                limit = min(answer.sampler.sampling.draft_tokens, limit)
                draft_s = self._drafter.guess_s(len(asking))
                count = step.add(text.trust, limit, draft_s)
                drafting |= {answer: count} if count else {}
        if drafting and self._drafter is not None:
            drafts |= self._drafter.guess(drafting)
        return drafts

    def note(self, answer: GenerationState, guessed: int, right: int) -> None:
        """Records that the first `right` of a generation's `guessed` draft tokens were accepted."""
        text = self._texts.get(answer)
        if text is not None and guessed:
            text.trust.note(guessed, right)

    def stop(self, answer: GenerationState) -> None:
        """Disables draft tokens for a generation."""
        self.forget(answer)
        self._disabled.add(answer)

    def forget(self, answer: GenerationState) -> None:
        """Frees the state of a generation, and allows draft tokens for it again."""
        self._texts.pop(answer, None)
        self._disabled.discard(answer)
        if self._drafter is not None:
            self._drafter.forget(answer)

    def reset(self) -> None:
        """Frees the state of all generations; works after an exception at any point."""
        self._texts, self._disabled = {}, set()
        if self._drafter is not None:
            self._drafter.reset()

    def close(self) -> None:
        """Frees the draft model's device memory, if there is a draft model."""
        if self._drafter is not None:
            self._drafter.close()

    def _text_of(self, answer: GenerationState) -> _DraftStatistics:
        if answer not in self._texts:
            text = _DraftStatistics([AcceptanceRate(usual) for usual in self._usual])
            if answer.source is not None and answer.source.ndim == 1:
                text.index.extend(answer.source.tolist())
                text.before = len(answer.source)
            self._texts[answer] = text
        return self._texts[answer]

    def _max_drafts(self, answer: GenerationState) -> int:
        """Returns the maximum number of draft tokens for a generation; 0 before its first token."""
        sampling, sequence = answer.sampler.sampling, answer.sequence
        drafted = sampling.draft_tokens if self._drafter is not None else 0
        if sequence is None or not answer.tokens or answer in self._disabled:
            return 0
        if sequence.all_left >= PAGE_TOKENS or answer.reason is not None:
            return 0
        room = min(answer.limit - len(answer.tokens), self._context - len(sequence.tokens)) - 1
        return max(min(max(sampling.lookup_tokens, drafted), room), 0)

    def _look_up(
        self, answer: GenerationState, text: _DraftStatistics, most: int, step: DraftBudget
    ) -> list[int]:
        """Returns draft tokens by prompt lookup; [] if there is no match or none would save time.

        Args:
            answer: The generation.
            text: Lookup index and acceptance rates of the generation.
            most: Maximum number of draft tokens.
            step: Budget of the step, to which the draft tokens are added.
        """
        most = min(answer.sampler.sampling.lookup_tokens, most)
        if most < 1:
            return []
        index = text.index
        index.extend(answer.text_from(len(index.tokens) - text.before))
        guesses, match_length = index.guess(most)
        if not guesses:
            return []
        text.trust = text.trusts[sum(match_length >= min_length for min_length in _MATCH_CLASSES)]
        return guesses[: step.add(text.trust, most)]


def _pending_tokens(answer: GenerationState) -> int:
    return 0 if answer.sequence is None else answer.sequence.all_left
