"""Draft tokens by a draft model: a smaller model with its own cache."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from clrt.errors import InputError, OutOfMemoryError
from clrt.generation.engine import CHUNK, DecoderEngine
from clrt.generation.generation_state import GenerationState
from clrt.generation.model_spec import LanguageModel
from clrt.generation.open_model import open_language_model
from clrt.generation.sampler import TokenSampler
from clrt.generation.sequences import KvSequence, ScheduledSequence
from clrt.generation.speculation_policy import DecodeTimeModel
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import expanded

# Maximum time for the draft model to read a prompt, as a fraction of the time since the request.
# The draft model starts once the predicted time is within it, so that short answers are not
# delayed.
_MAX_READ_FRACTION = 0.1
# Number of measured steps before draft tokens have a predicted time; until then they count as free,
# because few samples may be disturbed.
_MIN_MEASURED_STEPS = 6
# Maximum factor by which one measurement raises the time per read token: the machine may have been
# busy.
_MAX_READ_TIME_GROWTH = 1.25


@dataclass(eq=False)
class _DraftState:
    """State of a draft model for one generation.

    Attributes:
        answer: State of the generation in the target model.
        sequence: Sequence of the generation's tokens in the draft model's cache.
        sampler: Sampler with the generation's options and seed, so that both models agree more
            often.
        wanted: Number of draft tokens wanted for the target model's next step.
        guesses: Draft tokens made so far for the target model's next step.
    """

    answer: GenerationState
    sequence: KvSequence
    sampler: TokenSampler
    wanted: int = 0
    guesses: list[int] = field(default_factory=list)


class DraftModel:
    """A draft model: a smaller model that proposes draft tokens for generations of a target model.

    Args:
        engine: Engine of the draft model.
        vocabulary: Number of logits of the draft model.
        known: Number of logits of the target model.
    """

    def __init__(self, engine: DecoderEngine, vocabulary: int, known: int) -> None:
        self.engine = engine
        self._vocabulary = vocabulary
        self._known = known
        self._texts: dict[GenerationState, _DraftState] = {}
        self._excluded: set[GenerationState] = set()
        self._costs, self._steps = DecodeTimeModel(), 0
        # Seconds per token of prompt-reading steps, without the first one, which compiles.
        self._has_read, self._read_s = False, 0.0

    def follows(self, answer: GenerationState) -> bool:
        """Whether the model can propose draft tokens for a generation.

        False once the generation has a token that the draft model lacks, exceeds its context, or
        found no memory in its cache.
        """
        return answer not in self._excluded

    def guess_s(self, texts: int) -> float:
        """Returns the predicted time of a draft token, in seconds; 0 until known.

        It is the time of a decode step of the draft model, divided by the tokens that it makes.

        Args:
            texts: Number of generations in the step; each gets one draft token.
        """
        return self._costs.of(texts) / texts if self._steps >= _MIN_MEASURED_STEPS else 0.0

    def guess(self, wanted: Mapping[GenerationState, int]) -> dict[GenerationState, list[int]]:
        """Returns draft tokens by generation; generations without any are left out.

        A generation gets no draft tokens while the draft model would take too long to read its
        prompt.

        Args:
            wanted: Maximum number of draft tokens by generation.

        Raises:
            ClrtError: A run of the draft model failed.
        """
        followed = [t for a, n in wanted.items() if (t := self._synchronized(a, n)) is not None]
        active = texts = [text for text in followed if self._may_read(text)]
        while active:
            try:
                self._step(active)
            except OutOfMemoryError:
                last = list(self._texts)[-1]
                self.forget(last)
                self._excluded.add(last)
            active = [text for text in active if self._can_continue(text)]
        return {text.answer: text.guesses for text in texts if text.guesses}

    def forget(self, answer: GenerationState) -> None:
        """Frees the state of a generation; does nothing for an unknown generation."""
        self._excluded.discard(answer)
        text = self._texts.pop(answer, None)
        if text is not None:
            self.engine.close(text.sequence)

    def reset(self) -> None:
        """Frees the state of all generations; works after an exception at any point."""
        self._texts, self._excluded = {}, set()
        self.engine.begin_anew()

    def close(self) -> None:
        """Frees the draft model's device memory."""
        self.engine.close_model()

    def _synchronized(self, answer: GenerationState, wanted: int) -> _DraftState | None:
        """Returns a generation's state, with all of its tokens appended and draft tokens removed.

        Args:
            answer: The generation.
            wanted: Number of draft tokens wanted for the target model's next step.

        Returns:
            The state; None if the tokens exceed the draft model's vocabulary or context.
        """
        text = self._texts.get(answer)
        known = 0 if text is None else text.sequence.known
        more = answer.text_from(known)
        if known + len(more) >= self.engine.context or max(more, default=0) >= self._vocabulary:
            self.forget(answer)
            self._excluded.add(answer)
            return None
        if text is None:
            sampler = replace(answer.sampler, vocabulary=self._vocabulary, allowed=None)
            text = _DraftState(answer, self.engine.open(more), sampler)
            self._texts[answer] = text
        else:
            self.engine.commit_drafts(text.sequence, more)
        text.wanted, text.guesses = wanted, []
        return text

    def _may_read(self, text: _DraftState) -> bool:
        """Whether the draft model may run the pending tokens of a generation now.

        True if there are fewer pending tokens than a page holds, or if running them takes at most a
        tenth of the time since the request.
        """
        pending = text.sequence.left
        so_far_s = time.perf_counter() - text.answer.asked_s
        return pending < PAGE_TOKENS or pending * self._read_s <= _MAX_READ_FRACTION * so_far_s

    def _step(self, texts: Sequence[_DraftState]) -> None:
        """Runs the draft model once for generations and appends a draft token to each.

        Generations whose pending tokens do not all fit into the step get no draft token.
        """
        parts: list[ScheduledSequence] = []
        taking: list[_DraftState] = []
        room = CHUNK
        for text in sorted(texts, key=lambda t: t.sequence.left):
            count = min(text.sequence.left, room)
            if not count:
                break
            whole = count == text.sequence.left
            if whole:
                taking.append(text)
            room -= count
            parts.append(ScheduledSequence(text.sequence, count, [text.sampler] if whole else ()))
        started = time.perf_counter()
        tokens = self.engine.step(parts, ["token"]).get("token", ())
        self._note(sum(part.count for part in parts), len(taking), time.perf_counter() - started)
        for text in texts:
            text.wanted = text.wanted if text in taking else 0
        for text, token in zip(taking, tokens, strict=True):
            if token < self._known:
                text.sequence.guess([int(token)])
                text.guesses.append(int(token))
            else:  # a padded logit
                text.wanted = 0

    def _note(self, tokens: int, rows: int, seconds: float) -> None:
        """Records the duration of a step that ran `tokens` tokens and made `rows` draft tokens."""
        if tokens == rows:
            self._costs.note(rows, seconds)
            self._steps += 1
        elif tokens >= PAGE_TOKENS:
            if self._has_read:
                limit_s = _MAX_READ_TIME_GROWTH * self._read_s or math.inf
                self._read_s = min(seconds / tokens, limit_s)
            self._has_read = True

    def _can_continue(self, text: _DraftState) -> bool:
        """Whether a generation wants another draft token, and the draft model can make it."""
        ended = bool(text.guesses) and text.guesses[-1] in text.answer.ends
        has_room = len(text.sequence.tokens) < self.engine.context
        followed = text.answer in self._texts
        return followed and has_room and not ended and len(text.guesses) < text.wanted


def open_drafter(
    source: str | Path, model: LanguageModel, cache: str, **options: Any
) -> DraftModel:
    """Opens a draft model on a device.

    Args:
        source: Path of the draft model.
        model: The target model.
        cache: Dtype of the KV cache: "float32", "float16" or "int8".
        options: Options of `DecoderEngine`, such as `device`.

    Raises:
        InputError: The two vocabularies differ.
        UnsupportedError: One of the models has an encoder.
        ClrtError: The draft model cannot be read or loaded.
    """
    if not isinstance(source, str | Path):
        raise InputError(f"The draft is {source!r}; expected the path of a smaller model.")
    draft = open_language_model(
        expanded(Path(source)), None, cache, (), options.get("device"), options.get("cache_dir")
    )
    for one in (model, draft):
        one.check_decoder("`draft=`")
    check_same_tokens(model, draft)
    options |= dict(long_beyond=draft.decoder.long_beyond)
    engine = DecoderEngine(draft.graph, min(draft.context, model.context), **options)
    return DraftModel(engine, draft.vocabulary, model.vocabulary)


def check_same_tokens(model: LanguageModel, draft: LanguageModel) -> None:
    """Checks that a draft model has the same tokens as its target model.

    Numbers of logits may differ, since models of a family pad them differently.

    Raises:
        InputError: A token differs.
    """
    ours, theirs = (_by_id(m) for m in (model, draft))
    wrong = next(
        (k for k in sorted(ours.keys() | theirs.keys()) if ours.get(k) != theirs.get(k)), None
    )
    if wrong is None:
        return
    difference = " and ".join(
        f"{'none' if (name := tokens.get(wrong)) is None else repr(name[:40])} in '{m.name}'"
        for m, tokens in ((model, ours), (draft, theirs))
    )
    raise InputError(
        f"The draft model has another vocabulary: token {wrong} is {difference}; choose a smaller "
        "model of the same family."
    )


def _by_id(model: LanguageModel) -> dict[int, str]:
    return {k: name for name, k in model.tokenizer.get_vocab(with_added_tokens=True).items()}
