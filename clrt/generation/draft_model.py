"""Guesses by a draft model: a smaller one, with its own cache, writes ahead of the texts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clrt.errors import InputError, OutOfMemoryError
from clrt.generation.engine import CHUNK, DecoderEngine
from clrt.generation.generation_state import GenerationState
from clrt.generation.model_reader import read_language_model
from clrt.generation.model_spec import LanguageModel
from clrt.generation.sampler import TokenSampler
from clrt.generation.sequences import KvSequence, ScheduledSequence
from clrt.generation.speculation_policy import StepTimeModel
from clrt.ops.attention.page_layout import PAGE_TOKENS
from clrt.util.files import expanded

# A text's prompt is read once that takes no more than this share of the time since it was asked
# for: so an answer that is short is not late by it.
_READING_SHARE = 0.1
# Guesses cost nothing before so many steps are known: of few each may have been disturbed.
_FIRST_STEPS = 6
# What reading a token takes grows by so much at most: the machine may have been busy.
_READING_GROWTH = 1.25


@dataclass(eq=False)
class _DraftedText:
    """Where the draft model is in a text.

    Attributes:
        sampler: Draws as the text's own does, by the same seed: so both agree more often.
        wanted: How many guesses are wanted this time.
        guesses: Those that there are.
    """

    answer: GenerationState
    sequence: KvSequence
    sampler: TokenSampler
    wanted: int = 0
    guesses: list[int] = field(default_factory=list)


class DraftModel:
    """A draft model, which keeps step with the texts that it writes ahead of.

    Args:
        engine: Of the draft model.
        vocabulary: How many tokens the draft model has logits of.
        known: How many tokens the model has that texts are of.
    """

    def __init__(self, engine: DecoderEngine, vocabulary: int, known: int) -> None:
        self.engine = engine
        self._vocabulary = vocabulary
        self._known = known
        self._texts: dict[GenerationState, _DraftedText] = {}
        self._without: set[GenerationState] = set()
        self._costs, self._steps = StepTimeModel(), 0
        # Seconds per token of steps that read, without the first one, which compiles.
        self._has_read, self._read_s = False, 0.0

    def follows(self, answer: GenerationState) -> bool:
        """Whether it can guess for a text: its tokens and their number are within the model, and
        the cache had room so far.
        """
        return answer not in self._without

    def guess_s(self, texts: int) -> float:
        """Seconds that a guess takes where so many texts have theirs together; 0 at first."""
        return self._costs.of(texts) / texts if self._steps >= _FIRST_STEPS else 0.0

    def guess(self, wanted: Mapping[GenerationState, int]) -> dict[GenerationState, list[int]]:
        """Tokens that may follow texts, for each at most as many as wanted.

        A text whose prompt is still to be read gets none this time, and perhaps later.

        Raises:
            ClrtError: A run failed.
        """
        followed = [t for a, n in wanted.items() if (t := self._followed(a, n)) is not None]
        active = texts = [text for text in followed if self._is_time(text)]
        while active:
            try:
                self._step(active)
            except OutOfMemoryError:
                last = list(self._texts)[-1]
                self.forget(last)
                self._without.add(last)
            active = [text for text in active if self._goes_on(text)]
        return {text.answer: text.guesses for text in texts if text.guesses}

    def forget(self, answer: GenerationState) -> None:
        """Frees what a text has here."""
        self._without.discard(answer)
        text = self._texts.pop(answer, None)
        if text is not None:
            self.engine.close(text.sequence)

    def reset(self) -> None:
        """Frees what all texts have here, whatever an exception has left of it."""
        self._texts, self._without = {}, set()
        self.engine.begin_anew()

    def close(self) -> None:
        """Frees the device's memory."""
        self.engine.close_model()

    def _followed(self, answer: GenerationState, wanted: int) -> _DraftedText | None:
        """A text with all of its tokens, and no guesses; None where it cannot be followed."""
        text = self._texts.get(answer)
        known = 0 if text is None else text.sequence.known
        more = answer.text_from(known)
        if known + len(more) >= self.engine.context or max(more, default=0) >= self._vocabulary:
            self.forget(answer)
            self._without.add(answer)
            return None
        if text is None:
            sampler = replace(answer.sampler, vocabulary=self._vocabulary, allowed=None)
            text = _DraftedText(answer, self.engine.open(more), sampler)
            self._texts[answer] = text
        else:
            self.engine.settle(text.sequence, more)
        text.wanted, text.guesses = wanted, []
        return text

    def _is_time(self, text: _DraftedText) -> bool:
        """Whether what is to be read of a text is little beside what it took so far."""
        left = text.sequence.left
        so_far_s = time.perf_counter() - text.answer.asked_s
        return left < PAGE_TOKENS or left * self._read_s <= _READING_SHARE * so_far_s

    def _step(self, texts: Sequence[_DraftedText]) -> None:
        """A further guess for texts. A prompt that a step has no room for is left for the next."""
        parts: list[ScheduledSequence] = []
        taking: list[_DraftedText] = []
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
        """Notes what a step took."""
        if tokens == rows:
            self._costs.note(rows, seconds)
            self._steps += 1
        elif tokens >= PAGE_TOKENS:
            if self._has_read:
                most = _READING_GROWTH * self._read_s or math.inf
                self._read_s = min(seconds / tokens, most)
            self._has_read = True

    def _goes_on(self, text: _DraftedText) -> bool:
        """Whether another guess is wanted, and possible."""
        ended = bool(text.guesses) and text.guesses[-1] in text.answer.ends
        has_room = len(text.sequence.tokens) < self.engine.context
        followed = text.answer in self._texts
        return followed and has_room and not ended and len(text.guesses) < text.wanted


def open_drafter(
    source: str | Path, model: LanguageModel, cache: str, **options: Any
) -> DraftModel:
    """A draft model on a device.

    Args:
        source, cache: As `read_language_model`.
        model: That texts are of.
        options: Of `DecoderEngine`.

    Raises:
        InputError: Its tokens are not the model's.
        UnsupportedError: One of both has an encoder.
        ClrtError: As `read_language_model` and `clrt.load`.
    """
    if not isinstance(source, str | Path):
        raise InputError(f"The draft is {source!r}; it is the path of a smaller model.")
    draft = read_language_model(expanded(Path(source)), None, cache)
    for one in (model, draft):
        one.check_decoder("`draft=`")
    check_same_tokens(model, draft)
    options |= dict(long_beyond=draft.decoder.long_beyond)
    engine = DecoderEngine(draft.graph, min(draft.context, model.context), **options)
    return DraftModel(engine, draft.vocabulary, model.vocabulary)


def check_same_tokens(model: LanguageModel, draft: LanguageModel) -> None:
    """Checks that a draft model has the tokens of the model.

    Models of one family pad their logits differently: that is no difference.

    Raises:
        InputError: It has not.
    """
    ours, theirs = (_by_id(m) for m in (model, draft))
    wrong = next(
        (k for k in sorted(ours.keys() | theirs.keys()) if ours.get(k) != theirs.get(k)), None
    )
    if wrong is None:
        return
    told = " and ".join(
        f"{'none' if (name := tokens.get(wrong)) is None else repr(name[:40])} in '{m.name}'"
        for m, tokens in ((model, ours), (draft, theirs))
    )
    raise InputError(
        f"The draft model has other tokens: token {wrong} is {told}; choose a smaller model of the "
        "same family."
    )


def _by_id(model: LanguageModel) -> dict[int, str]:
    return {k: name for name, k in model.tokenizer.get_vocab(with_added_tokens=True).items()}
