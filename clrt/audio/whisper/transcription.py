"""Progress of the transcription of one audio input: position, and text so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clrt.audio.speech_options import SpeechOptions
from clrt.audio.transcripts import TranscriptSegment
from clrt.audio.wav import FloatArray
from clrt.audio.whisper.segments import (
    FRAMES_PER_STEP,
    STEPS_PER_SECOND,
    WindowSegment,
    split_window,
)
from clrt.audio.whisper.spectrogram import Spectrogram
from clrt.audio.whisper.vocabulary import WhisperVocabulary
from clrt.audio.whisper.window_decoding import DecodedWindow, Window, is_silent
from clrt.generation.encoder_inputs import EncoderInput

# Maximum temperature of text on which later windows are conditioned: text drawn at a higher one is
# unreliable.
_MAX_CONDITION_TEMPERATURE = 0.5


class TranscriptionState:
    """State of the transcription of one audio input, which proceeds window by window.

    Attributes:
        language: Language code; "" until it is detected.

    Args:
        spectrogram: Features of the audio.
        vocabulary: Tokens of the model.
        options: Options of the transcription.
        window: Number of frames of a window.
        context: Maximum number of tokens of a window, prompt included.

    Source: openai/whisper, `whisper/transcribe.py`; transformers, `WhisperGenerationMixin`.
    """

    def __init__(
        self,
        spectrogram: Spectrogram,
        vocabulary: WhisperVocabulary,
        options: SpeechOptions,
        window: int,
        context: int,
    ) -> None:
        self.language = vocabulary.language_of(options.language) or ""
        self._spectrogram, self._vocabulary, self._options = spectrogram, vocabulary, options
        self._window, self._max_before = window, context // 2 - 1
        self._seek = 0
        self._prompt = vocabulary.encode(options.prompt) if options.prompt else []
        # Token sequences on which the next window is conditioned.
        self._previous_texts: list[Sequence[int]] = [self._prompt]
        self._random = np.random.default_rng(options.seed)

    @property
    def is_over(self) -> bool:
        """Whether all of the audio was transcribed."""
        return self._seek >= self._spectrogram.frames

    @property
    def frames(self) -> FloatArray:
        """Features of the next window, `[frames, mels]`."""
        return self._spectrogram.window(self._seek, self._window).T

    def window(self, source: EncoderInput) -> Window:
        """Returns the next window to decode, with its prompt.

        Args:
            source: Encoder input with the window's features.
        """
        options, vocabulary = self._options, self._vocabulary
        asked = vocabulary.prompt(self.language, options.task, options.timestamps)
        before = self._previous_tokens()
        if before and vocabulary.previous is not None:
            asked = [vocabulary.previous, *before, *asked]
        last = len(asked) - 1 - asked[::-1].index(vocabulary.start)
        return Window(source, asked, len(asked) - last, self._random)

    def take(self, text: DecodedWindow) -> list[TranscriptSegment]:
        """Converts a window's decoded text to segments and advances to the next window.

        Args:
            text: Decoded text of the window.

        Returns:
            The window's segments; [] for silence.
        """
        options, first_time = self._options, self._vocabulary.first_time
        frames = min(self._window, self._spectrogram.frames - self._seek)
        start = self._seek
        if is_silent(text, options.fallback):
            self._seek += frames
            return []
        if options.timestamps:
            parts, done = split_window(text.tokens, first_time, frames)
        else:
            parts = [WindowSegment(0, frames // FRAMES_PER_STEP, 0, tuple(text.tokens))]
            done = frames
        self._seek += max(done, 1)
        segments = [self._segment(part, start, text) for part in parts]
        segments = [segment for segment in segments if segment.text.strip()]
        if options.condition_on_previous_text and text.temperature <= _MAX_CONDITION_TEMPERATURE:
            self._previous_texts += [segment.tokens for segment in segments]
        else:
            self._previous_texts = [self._prompt]
        return segments

    def _segment(self, part: WindowSegment, start: int, text: DecodedWindow) -> TranscriptSegment:
        """Converts a segment of a window to a segment of the transcript, with times in seconds.

        Args:
            part: Segment of the window.
            start: Feature frame of the audio at which the window begins.
            text: Decoded text of the window.
        """
        origin = start / (FRAMES_PER_STEP * STEPS_PER_SECOND)
        logprobs = text.logprobs[part.first : part.first + len(part.tokens)]
        return TranscriptSegment(
            round(origin + part.start / STEPS_PER_SECOND, 2),
            round(origin + part.end / STEPS_PER_SECOND, 2),
            self._vocabulary.decode(part.tokens),
            float(np.mean(logprobs)) if logprobs else None,
            text.no_speech,
            self.language,
            part.tokens,
        )

    def _previous_tokens(self) -> list[int]:
        """Returns the tokens of earlier text to put before the next window's prompt; may be []."""
        first_time = self._vocabulary.first_time
        previous: list[int] = []
        for tokens in self._previous_texts:
            # The second of two final timestamps starts the next segment.
            doubled = len(tokens) > 2 and tokens[-2] >= first_time
            previous += tokens[:-1] if doubled else tokens
        return previous[-self._max_before :]
