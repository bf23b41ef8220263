"""The texts of windows: tokens chosen one by one, of several windows at a time."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

import numpy as np

from clrt.audio.speech_options import Fallback
from clrt.audio.wav import FloatArray
from clrt.audio.whisper.logits_rules import WhisperLogitsProcessor, finite, log_probabilities
from clrt.audio.whisper.vocabulary import WhisperVocabulary
from clrt.generation.encoder_inputs import EncoderInput
from clrt.generation.engine import DecoderEngine
from clrt.generation.options import Sampling
from clrt.generation.sampler import TokenSampler
from clrt.generation.sequences import KvSequence, ScheduledSequence


@dataclass(eq=False)
class Window:
    """A window whose text is wanted.

    Attributes:
        source: Its sound.
        prompt: Tokens, of which the last ones are those of `WhisperVocabulary.prompt`.
        asked: How many those are.
        draws: What decides where tokens are drawn.
    """

    source: EncoderInput
    prompt: list[int]
    asked: int
    draws: np.random.Generator


@dataclass(eq=False)
class WindowText:
    """The text of a window.

    Attributes:
        tokens: Without the one that ends it.
        logprobs: Of each; of the one that ended it, too, if one did.
        no_speech: How likely it is that nobody speaks.
        temperature: At which it was drawn.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    no_speech: float = 0.0
    temperature: float = 0.0

    @property
    def logprob(self) -> float:
        """The mean log-probability."""
        return float(np.mean(self.logprobs)) if self.logprobs else 0.0


class WindowReader:
    """Finds texts of windows.

    Args:
        engine: The model. It is for one thread at a time.
        vocabulary: Its tokens.
    """

    def __init__(self, engine: DecoderEngine, vocabulary: WhisperVocabulary) -> None:
        self._engine, self._vocabulary = engine, vocabulary
        self._sampler = TokenSampler(Sampling(), vocabulary.size, seed=0)

    def languages(self, sources: Sequence[EncoderInput]) -> list[str]:
        """The language of each sound.

        Raises:
            ClrtError: A run failed.
        """
        vocabulary = self._vocabulary
        if not vocabulary.languages:
            return [vocabulary.detected(np.empty(0)) for _ in sources]
        sequences = [self._engine.open([vocabulary.start], source=s) for s in sources]
        try:
            logits = self._step(sequences, [1] * len(sequences))
        finally:
            for sequence in sequences:
                self._engine.close(sequence)
        return [vocabulary.detected(row) for row in logits]

    def read(
        self,
        windows: Sequence[Window],
        rules: WhisperLogitsProcessor,
        fallback: Fallback,
        ended: Event,
    ) -> list[WindowText]:
        """The text of each window; a part of it if `ended` is set meanwhile.

        Raises:
            ClrtError: A run failed.
        """
        found: dict[int, WindowText] = {}
        left = list(range(len(windows)))
        for temperature in fallback.temperatures:
            texts = self._once([windows[k] for k in left], rules, temperature, ended)
            found |= zip(left, texts, strict=True)
            left = [k for k in left if self._is_bad(found[k], fallback)]
            if not left or ended.is_set():
                break
        return [found[k] for k in range(len(windows))]

    def _is_bad(self, text: WindowText, fallback: Fallback) -> bool:
        """Whether it is drawn anew."""
        if is_silent(text, fallback):
            return False
        most, least = fallback.compression_ratio, fallback.logprob
        if least is not None and text.logprob < least:
            return True
        return most is not None and shrinks_by(self._vocabulary.decode(text.tokens).strip()) > most

    def _once(
        self,
        windows: Sequence[Window],
        rules: WhisperLogitsProcessor,
        temperature: float,
        ended: Event,
    ) -> list[WindowText]:
        """The text of each window at one temperature."""
        engine, end = self._engine, rules.end
        texts = [WindowText(temperature=temperature) for _ in windows]
        # Their first tokens are run anew: the logits behind several of them are wanted.
        sequences = [engine.open(w.prompt, anew=True, source=w.source) for w in windows]
        going = list(range(len(windows)))
        rows = [w.asked for w in windows]
        try:
            while going and not ended.is_set():
                logits = self._step([sequences[k] for k in going], [rows[k] for k in going])
                first = 0
                for k in list(going):
                    own, text = logits[first : first + rows[k]], texts[k]
                    first += rows[k]
                    if not text.logprobs:
                        text.no_speech = self._no_speech(own[0])
                    rows[k] = 1
                    scores = rules(own[-1], text.tokens)
                    token = _chosen(scores, temperature, windows[k].draws)
                    text.logprobs.append(float(log_probabilities(scores)[token]))
                    if token == end:
                        going.remove(k)
                        continue
                    text.tokens.append(token)
                    sequences[k].tokens.append(token)
                    if len(sequences[k].tokens) >= engine.context:
                        going.remove(k)
        finally:
            for sequence in sequences:
                engine.close(sequence)
        return texts

    def _step(self, sequences: Sequence[KvSequence], rows: Sequence[int]) -> FloatArray:
        """Logits behind so many of the last tokens of each."""
        parts = [
            ScheduledSequence(sequence, sequence.left, [self._sampler] * count)
            for sequence, count in zip(sequences, rows, strict=True)
        ]
        return self._engine.step(parts, ["logits"])["logits"]

    def _no_speech(self, logits: FloatArray) -> float:
        return float(np.exp(log_probabilities(finite(logits))[self._vocabulary.no_speech]))


def is_silent(text: WindowText, fallback: Fallback) -> bool:
    """Whether a text is taken for what a model makes up where nobody speaks."""
    least, most = fallback.logprob, fallback.no_speech
    is_unsure = least is None or text.logprob < least
    return most is not None and is_unsure and text.no_speech > most


def shrinks_by(text: str) -> float:
    """How many times smaller a text becomes by compression."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))


def _chosen(scores: FloatArray, temperature: float, draws: np.random.Generator) -> int:
    top = scores.max()
    if temperature == 0 or top == -np.inf:
        return int(np.argmax(scores))
    sums = np.cumsum(np.exp((scores - top).astype(np.float64) / temperature))
    found = np.searchsorted(sums, draws.random() * sums[-1], "right")
    return min(int(found), len(scores) - 1)
