"""Decodes the texts of windows, token by token, in batches."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import field
from threading import Event

import numpy as np

from clrt.audio.speech_options import TemperatureFallback
from clrt.audio.wav import FloatArray
from clrt.audio.whisper.logits_rules import WhisperLogitsProcessor, finite, log_probabilities
from clrt.audio.whisper.vocabulary import WhisperVocabulary
from clrt.generation.encoder_inputs import EncoderInput
from clrt.generation.engine import DecoderEngine
from clrt.generation.options import Sampling
from clrt.generation.sampler import TokenSampler
from clrt.generation.sequences import KvSequence, ScheduledSequence
from clrt.util.fast_dataclass import dataclass


@dataclass(eq=False)
class Window:
    """A window of audio to decode, with its prompt.

    Attributes:
        source: Encoder input of the window.
        prompt: Prompt tokens: tokens of earlier text, then start, language and task tokens
            (`WhisperVocabulary.prompt`).
        asked: Number of prompt tokens that are not tokens of earlier text.
        draws: Random generator for drawing tokens.
    """

    source: EncoderInput
    prompt: list[int]
    asked: int
    draws: np.random.Generator


@dataclass(eq=False)
class DecodedWindow:
    """Tokens that were decoded for a window, with their probabilities.

    Attributes:
        tokens: Tokens, without the end token.
        logprobs: Log-probability of each token, and of the end token if it was reached.
        no_speech: Probability that the window has no speech.
        temperature: Temperature at which the text was decoded.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    no_speech: float = 0.0
    temperature: float = 0.0

    @property
    def logprob(self) -> float:
        """Mean of `logprobs`, the end token included; 0 if `logprobs` is empty."""
        return float(np.mean(self.logprobs)) if self.logprobs else 0.0


class WindowReader:
    """Decodes the texts of windows in batches, with retries at higher temperatures.

    Args:
        engine: Decoder engine, for one thread at a time.
        vocabulary: Tokens of the model.
    """

    def __init__(self, engine: DecoderEngine, vocabulary: WhisperVocabulary) -> None:
        self._engine, self._vocabulary = engine, vocabulary
        self._sampler = TokenSampler(Sampling(), vocabulary.size, seed=0)

    def languages(self, sources: Sequence[EncoderInput]) -> list[str]:
        """Detects the spoken language of each encoder input; returns the language codes.

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
        fallback: TemperatureFallback,
        ended: Event,
    ) -> list[DecodedWindow]:
        """Decodes the text of each window; a poor text is decoded again at higher temperatures.

        Args:
            windows: Windows to decode in one batch.
            rules: Rules for the tokens that may follow the prompt.
            fallback: Temperatures, and limits for decoding a window again.
            ended: Event that ends decoding; texts are then incomplete.

        Raises:
            ClrtError: A run failed.
        """
        results: dict[int, DecodedWindow] = {}
        remaining = list(range(len(windows)))
        for temperature in fallback.temperatures:
            texts = self._decode_at([windows[k] for k in remaining], rules, temperature, ended)
            results |= zip(remaining, texts, strict=True)
            remaining = [k for k in remaining if self._needs_retry(results[k], fallback)]
            if not remaining or ended.is_set():
                break
        return [results[k] for k in range(len(windows))]

    def _needs_retry(self, text: DecodedWindow, fallback: TemperatureFallback) -> bool:
        """Returns whether a window must be decoded again at the next temperature.

        True if the mean log-probability of its text is too low, or the compression ratio too high.
        False if the window is silent.
        """
        if is_silent(text, fallback):
            return False
        max_ratio, min_logprob = fallback.compression_ratio_threshold, fallback.logprob_threshold
        if min_logprob is not None and text.logprob < min_logprob:
            return True
        return (
            max_ratio is not None
            and shrinks_by(self._vocabulary.decode(text.tokens).strip()) > max_ratio
        )

    def _decode_at(
        self,
        windows: Sequence[Window],
        rules: WhisperLogitsProcessor,
        temperature: float,
        ended: Event,
    ) -> list[DecodedWindow]:
        """Decodes the text of each window at one temperature.

        Args:
            windows: Windows to decode in one batch.
            rules: Rules for the tokens that may follow the prompt.
            temperature: 0 selects the most likely token; else tokens are drawn.
            ended: Event that ends decoding; texts are then incomplete.
        """
        engine, end = self._engine, rules.end
        texts = [DecodedWindow(temperature=temperature) for _ in windows]
        # Recomputes the prompts, because the logits after several of their tokens are needed.
        sequences = [engine.open(w.prompt, anew=True, source=w.source) for w in windows]
        running = list(range(len(windows)))
        rows = [w.asked for w in windows]
        try:
            while running and not ended.is_set():
                logits = self._step([sequences[k] for k in running], [rows[k] for k in running])
                first = 0
                for k in list(running):
                    window_logits, text = logits[first : first + rows[k]], texts[k]
                    first += rows[k]
                    if not text.logprobs:
                        text.no_speech = self._no_speech(window_logits[0])
                    rows[k] = 1
                    scores = rules(window_logits[-1], text.tokens)
                    token = _choose_token(scores, temperature, windows[k].draws)
                    text.logprobs.append(float(log_probabilities(scores)[token]))
                    if token == end:
                        running.remove(k)
                        continue
                    text.tokens.append(token)
                    sequences[k].tokens.append(token)
                    if len(sequences[k].tokens) >= engine.context:
                        running.remove(k)
        finally:
            for sequence in sequences:
                engine.close(sequence)
        return texts

    def _step(self, sequences: Sequence[KvSequence], rows: Sequence[int]) -> FloatArray:
        """Runs the pending tokens of sequences.

        Args:
            sequences: Sequences with tokens that have not run yet.
            rows: For each sequence, the number of last tokens for which to return logits.

        Returns:
            float32 `[sum(rows), vocabulary]`, sequence after sequence.
        """
        parts = [
            ScheduledSequence(sequence, sequence.left, [self._sampler] * count)
            for sequence, count in zip(sequences, rows, strict=True)
        ]
        return self._engine.step(parts, ["logits"])["logits"]

    def _no_speech(self, logits: FloatArray) -> float:
        return float(np.exp(log_probabilities(finite(logits))[self._vocabulary.no_speech]))


def is_silent(text: DecodedWindow, fallback: TemperatureFallback) -> bool:
    """Returns whether a window's text is dropped as silence.

    True if its probability of no speech is above `fallback.no_speech_threshold`, and its mean
    log-probability is below `fallback.logprob_threshold`. A `logprob_threshold` of None omits the
    second condition; a `no_speech_threshold` of None keeps all texts.
    """
    min_logprob, max_no_speech = fallback.logprob_threshold, fallback.no_speech_threshold
    is_unsure = min_logprob is None or text.logprob < min_logprob
    return max_no_speech is not None and is_unsure and text.no_speech > max_no_speech


def shrinks_by(text: str) -> float:
    """Returns the compression ratio of a text: its UTF-8 size divided by its size after zlib."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))


def _choose_token(scores: FloatArray, temperature: float, draws: np.random.Generator) -> int:
    top = scores.max()
    if temperature == 0 or top == -np.inf:
        return int(np.argmax(scores))
    sums = np.cumsum(np.exp((scores - top).astype(np.float64) / temperature))
    token = np.searchsorted(sums, draws.random() * sums[-1], "right")
    return min(int(token), len(scores) - 1)
