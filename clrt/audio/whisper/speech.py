"""A Whisper model on a device: transcribes audio to segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event

from clrt.audio.features import Features
from clrt.audio.speech_options import SpeechOptions
from clrt.audio.streams import Sound, read_audio
from clrt.audio.transcript_stream import TranscriptStream
from clrt.audio.transcripts import Transcript, TranscriptSegment
from clrt.audio.whisper.model import read_whisper_model
from clrt.audio.whisper.spectrogram import SpectrogramMaker
from clrt.audio.whisper.transcription import TranscriptionState
from clrt.audio.whisper.window_decoding import WindowReader
from clrt.errors import ClrtError, InputError
from clrt.generation.engine import DecoderEngine
from clrt.ir.dtypes import DType
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.ir.symbolic_trace import clamp
from clrt.runtime.model.model import Model
from clrt.runtime.opencl.devices import DeviceInfo, choose_device
from clrt.util.active_calls import ActiveCall, CallMutex
from clrt.util.math import ceil_div

# Maximum number of inputs in a batch, and maximum size of their cached keys and values in bytes.
_MAX_BATCH, _MAX_BATCH_BYTES = 8, 1 << 30


class WhisperSpeech:
    """A Whisper model on a device: transcribes audio to segments with times.

    Attributes:
        features: Feature extractor of a window, for use by callers.
        vocabulary: Tokens of the model.

    Args:
        source: A Hugging Face folder, or a compiled file.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        strict: Whether a node of the feature extractor without a fitting kernel is an error; None
            reads CLRT_STRICT. The encoder and decoder always read CLRT_STRICT.
        cache_dir: Folder for compiled programs; None for the default.

    Raises:
        ModelError: A file is missing or damaged.
        UnsupportedError: The model needs a feature that clrt does not support.
    """

    def __init__(
        self,
        source: Path,
        *,
        device: str | int | DeviceInfo | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        info = choose_device(device)
        model = read_whisper_model(source)
        preset, self.vocabulary = model.preset, model.vocabulary
        self.features = Features(preset, device=info.index, strict=strict, cache_dir=cache_dir)
        self._spectrograms = SpectrogramMaker(
            preset, device=info.index, strict=strict, cache_dir=cache_dir
        )
        self._engine = DecoderEngine(
            model.graph,
            model.decoder.context,
            encoder=model.encoder,
            sequences=1,
            device=info.index,
            cache_dir=cache_dir,
        )
        self._reader = WindowReader(self._engine, self.vocabulary)
        self._frames = model.frames
        page_bytes = 4 * model.decoder.page_elements(DType.FLOAT32)
        of_sound = page_bytes * ceil_div(model.encoder.places, PAGE_TOKENS)
        self._max_batch = clamp(_MAX_BATCH_BYTES // of_sound, 1, _MAX_BATCH)
        self._engine_lock = CallMutex()

    @property
    def model(self) -> Model:
        """Loaded model of encoder and decoder, with a paged KV cache."""
        return self._engine.model

    def check(self, options: SpeechOptions) -> None:
        """Checks that the model supports the language, task and prompt of the options.

        Raises:
            InputError: The language or the task is not supported, or the prompt is not a string.
        """
        self.vocabulary.check_task(options.task)
        self.vocabulary.language_of(options.language)
        if options.prompt is not None and not isinstance(options.prompt, str):
            raise InputError(f"prompt must be a text, not {type(options.prompt).__name__}.")

    def transcribe(
        self, sounds: Sequence[Sound], sampling_rate: int | None, options: SpeechOptions
    ) -> list[Transcript]:
        """Transcribes audio inputs; windows of several inputs run in one batch if memory allows.

        Args:
            sounds: Audio inputs: paths, bytes of files, or arrays.
            sampling_rate: Sampling rate of arrays, in Hz; None for the model's.
            options: Options of the transcription.

        Raises:
            InputError: An input is damaged, empty, or of a wrong type.
            OutOfMemoryError: An input exceeds CLRT_HOST_LIMIT.
            ClrtError: A run failed.
        """
        transcripts: list[Transcript] = []
        for first in range(0, len(sounds), self._max_batch):
            group = sounds[first : first + self._max_batch]
            opened = [self._open(sound, sampling_rate, options) for sound in group]
            courses = [course for course, _ in opened]
            segments: list[list[TranscriptSegment]] = [[] for _ in group]
            for number, segment in self._run_windows(courses, options, Event()):
                segments[number].append(segment)
            transcripts += [
                Transcript.of(parts, course.language, seconds)
                for parts, (course, seconds) in zip(segments, opened, strict=True)
            ]
        return transcripts

    def stream(
        self, sound: Sound, sampling_rate: int | None, options: SpeechOptions
    ) -> TranscriptStream:
        """Transcribes an audio input to a stream of segments.

        Args:
            sound: Audio input: a path, the bytes of a file, or an array.
            sampling_rate: Sampling rate of an array, in Hz; None for the model's.
            options: Options of the transcription.

        Raises:
            InputError: The input is damaged, empty, or of a wrong type.
            OutOfMemoryError: The input exceeds CLRT_HOST_LIMIT.
        """
        course, seconds = self._open(sound, sampling_rate, options)
        ended = Event()
        segments = (segment for _, segment in self._run_windows([course], options, ended))
        return TranscriptStream(seconds, segments, lambda: course.language, ended)

    def close(self) -> None:
        """Frees the device memory."""
        call = ActiveCall()
        self._engine_lock.take(call)
        self._engine.close_model()
        self._engine_lock.give_back()
        self._spectrograms.close()
        self.features.close()

    def _open(
        self, sound: Sound, sampling_rate: int | None, options: SpeechOptions
    ) -> tuple[TranscriptionState, float]:
        """Reads an audio input; returns its new transcription state and its duration in seconds.

        Args:
            sound: Audio input: a path, the bytes of a file, or an array.
            sampling_rate: Sampling rate of an array, in Hz; None for the model's.
            options: Options of the transcription.
        """
        samples = read_audio(sound, sampling_rate, to=self.features.sampling_rate)
        spectrogram = self._spectrograms(samples)
        context = self._engine.context
        course = TranscriptionState(spectrogram, self.vocabulary, options, self._frames, context)
        return course, len(samples) / self.features.sampling_rate

    def _run_windows(
        self, courses: Sequence[TranscriptionState], options: SpeechOptions, ended: Event
    ) -> Iterator[tuple[int, TranscriptSegment]]:
        """Transcribes audio inputs, one window of each input at a time.

        Args:
            courses: Transcription state of each input, which is updated.
            options: Options of the transcription.
            ended: Event that ends transcription.

        Yields:
            Index of the input in `courses`, and a segment.
        """
        while running := [k for k, course in enumerate(courses) if not course.is_over]:
            window_segments = self._run_locked([courses[k] for k in running], options, ended)
            if ended.is_set():
                return
            for k, segments in zip(running, window_segments, strict=True):
                for segment in segments:
                    yield k, segment

    def _run_locked(
        self, courses: Sequence[TranscriptionState], options: SpeechOptions, ended: Event
    ) -> list[list[TranscriptSegment]]:
        """Transcribes the next window of each input, with the engine locked for this thread.

        Args:
            courses: Transcription state of each input, which is updated.
            options: Options of the transcription.
            ended: Event that ends transcription.

        Returns:
            Segments of each input's window, in the order of `courses`.
        """
        call = ActiveCall()
        try:
            self._engine_lock.take(call)
            if self._engine_lock.is_torn:
                self._engine.begin_anew()
                self._engine_lock.is_torn = False
            try:
                segments = self._run_batch(courses, options, ended)
            except ClrtError:
                self._engine_lock.give_back()
                raise
            self._engine_lock.give_back()
            return segments
        finally:
            call.end()

    def _run_batch(
        self, courses: Sequence[TranscriptionState], options: SpeechOptions, ended: Event
    ) -> list[list[TranscriptSegment]]:
        """Transcribes the next window of each input as one batch; detects unknown languages first.

        Args:
            courses: Transcription state of each input, which is updated.
            options: Options of the transcription.
            ended: Event that ends transcription.

        Returns:
            Segments of each input's window, in the order of `courses`.
        """
        sources = [self._engine.read(course.frames) for course in courses]
        try:
            unknown = [k for k, course in enumerate(courses) if not course.language]
            if unknown:
                spoken = self._reader.languages([sources[k] for k in unknown])
                for k, language in zip(unknown, spoken, strict=True):
                    courses[k].language = language
            windows = [c.window(s) for c, s in zip(courses, sources, strict=True)]
            rules = self.vocabulary.rules(options.timestamps)
            texts = self._reader.read(windows, rules, options.fallback, ended)
        finally:
            for source in sources:
                self._engine.release(source)
        return [course.take(text) for course, text in zip(courses, texts, strict=True)]
