"""Voice activity detection by models such as Silero VAD."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clrt.audio.chunks import Chunks
from clrt.audio.streams import Sound
from clrt.errors import InputError, ModelError
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.fast_dataclass import dataclass

# Samples per chunk, and samples of the preceding chunk that the model takes before it, by supported
# sampling rate in Hz.
_SIZES = {16_000: (512, 64), 8_000: (256, 32)}
_INPUT, _STATE, _RATE = "input", "state", "sr"
_OUTPUTS = "output", "stateN"
_UNITS = 128


class Segment(NamedTuple):
    """A segment of speech, in seconds from the start of the audio."""

    start: float
    end: float


@dataclass(frozen=True)
class SpeechThresholds:
    """Thresholds that turn speech probabilities of chunks into segments; defaults are Silero's.

    Attributes:
        speech: Minimum probability of the first chunk of a segment.
        silence: Probability below which a pause begins; a long pause ends the segment. None for
            0.15 less than `speech`, at least 0.01.
        min_speech_ms: Segments of at most this length, in ms, are dropped.
        min_silence_ms: Minimum pause that ends a segment, in ms.
        pad_ms: Padding at both ends of a segment in ms; at most half of the pause between two
            segments.

    Raises:
        InputError: A value is out of range.
    """

    speech: float = 0.5
    silence: float | None = None
    min_speech_ms: float = 250
    min_silence_ms: float = 100
    pad_ms: float = 30

    def __post_init__(self) -> None:
        for name, limit in (
            ("speech", 1.0),
            ("silence", 1.0),
            ("min_speech_ms", 3.6e6),
            ("min_silence_ms", 3.6e6),
            ("pad_ms", 3.6e6),
        ):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= limit:
                raise InputError(f"{name} is {value!r}; expected 0 to {limit:g}.")

    @property
    def ends_below(self) -> float:
        """Probability below which a pause begins: `silence`, or its default."""
        return max(self.speech - 0.15, 0.01) if self.silence is None else self.silence


class VoiceActivity:
    """Finds speech in audio with Silero VAD or a model of the same inputs and outputs.

    The model maps a chunk and a state to the probability of speech and the next state.

    The state stays on the device between chunks. Each call has its own state, so calls may come
    from several threads.

    Args:
        model: An ONNX file with inputs `input`, `state` `[2, 1, 128]` and optionally `sr`, and
            outputs `output` and `stateN`: Silero VAD 5 or later.
        sampling_rate: Sampling rate that the model supports, 16000 or 8000 Hz. Audio is resampled.
        thresholds: Thresholds of segments; None for the defaults.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        strict: Whether a node without a fitting kernel is an error; None reads CLRT_STRICT.
        cache_dir: Folder for compiled programs; None for the default.

    Attributes:
        model: The loaded model.
        thresholds: Thresholds of segments.

    Raises:
        ModelError: The model has other inputs or outputs.
        InputError: The sampling rate is not supported.

    Source: `get_speech_timestamps` of the package silero-vad, without its limit of segment lengths.
    """

    def __init__(
        self,
        model: str | Path | bytes,
        *,
        sampling_rate: int = 16_000,
        thresholds: SpeechThresholds | None = None,
        device: str | int | DeviceInfo | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        if sampling_rate not in _SIZES:
            listing = " or ".join(map(str, _SIZES))
            raise InputError(f"sampling_rate is {sampling_rate!r}; the models support {listing}.")
        self.thresholds = SpeechThresholds() if thresholds is None else thresholds
        self.model: Model = load(model, device=device, strict=strict, cache_dir=cache_dir)
        self._rate = sampling_rate
        self._samples, self._context = _SIZES[sampling_rate]
        names = {s.name for s in self.model.inputs}
        outputs = {s.name for s in self.model.outputs}
        if names | {_RATE} != {_INPUT, _STATE, _RATE} or not outputs >= set(_OUTPUTS):
            raise ModelError(
                f"The model takes {', '.join(sorted(names))} and gives "
                f"{', '.join(sorted(outputs))}; one for voice activity takes {_INPUT}, {_STATE} "
                f"and perhaps {_RATE}, and gives {' and '.join(_OUTPUTS)}."
            )
        self._rates = {_RATE: np.array(sampling_rate, np.int64)} if _RATE in names else {}

    def segments(self, audio: Sound, sampling_rate: int | None = None) -> Iterator[Segment]:
        """Yields segments of speech as soon as they are final, without loading a whole file.

        Args:
            audio: A path, the bytes of a file, or an array `[samples]` or `[channels, samples]`.
            sampling_rate: Sampling rate of an array in Hz; None for the model's.

        Raises:
            InputError: The audio is damaged or of a wrong type.
        """
        chunks = Chunks(audio, self._samples, self._rate, sampling_rate)
        rate = self._rate
        finder = SegmentFinder(self.thresholds, rate, self._samples)
        for probability in self._run(chunks):
            for start, end in finder.push(probability):
                yield Segment(start / rate, end / rate)
        for start, end in finder.finish(chunks.samples_read):
            yield Segment(start / rate, end / rate)

    def probabilities(self, audio: Sound, sampling_rate: int | None = None) -> Iterator[float]:
        """Yields the probability of speech in each chunk of 32 ms.

        Args:
            audio: A path, the bytes of a file, or an array `[samples]` or `[channels, samples]`.
            sampling_rate: Sampling rate of an array in Hz; None for the model's.

        Raises:
            InputError: The audio is damaged or of a wrong type.
        """
        return self._run(Chunks(audio, self._samples, self._rate, sampling_rate))

    def close(self) -> None:
        """Frees the device memory."""
        self.model.close()

    def __enter__(self) -> VoiceActivity:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self, chunks: Iterable[np.ndarray[tuple[int], np.dtype[np.float32]]]
    ) -> Iterator[float]:
        """Yields the speech probability of each chunk; the model keeps its state between them."""
        output, next_state = _OUTPUTS
        state = self.model.new_state({_STATE: next_state}, {_STATE: (2, 1, _UNITS)})
        samples = np.zeros((1, self._context + self._samples), np.float32)
        for chunk in chunks:
            samples[0, : self._context] = samples[0, self._samples :]
            samples[0, self._context :] = chunk
            inputs = {_INPUT: samples, **self._rates}
            yield float(self.model.run(inputs, [output], state=state)[output].reshape(-1)[0])


@dataclass
class SegmentFinder:
    """Finds segments of speech in chunk probabilities; all times are counted in samples.

    A segment is yielded only once the next segment or the audio has ended, since the start of the
    next segment may limit the padding of this one.

    Attributes:
        thresholds: Thresholds of segments.
        rate: Sampling rate in Hz.
        samples: Samples per chunk.
        at: Start of the next chunk.
        start: Start of the current segment; None outside of speech.
        pause: Start of the current pause in the segment; None outside of pauses.
        waiting: (padded start, unpadded end) of the last segment, which was not yielded yet; None
            for none.
    """

    thresholds: SpeechThresholds
    rate: int
    samples: int
    at: int = 0
    start: int | None = None
    pause: int | None = None
    waiting: tuple[int, int] | None = field(default=None)

    def push(self, probability: float) -> Iterator[tuple[int, int]]:
        """Adds a chunk and yields the segments that are now final, as (start, end) in samples.

        Args:
            probability: Probability of speech in the chunk.
        """
        at, self.at = self.at, self.at + self.samples
        if probability >= self.thresholds.speech:
            self.pause = None
            self.start = at if self.start is None else self.start
        elif probability < self.thresholds.ends_below and self.start is not None:
            self.pause = at if self.pause is None else self.pause
            if at - self.pause >= self._count(self.thresholds.min_silence_ms):
                yield from self._close(self.pause)

    def finish(self, length: int) -> Iterator[tuple[int, int]]:
        """Yields the remaining segments, as (start, end) in samples.

        Args:
            length: Number of samples of the audio.
        """
        if self.start is not None:
            yield from self._close(length)
        if self.waiting is not None:
            start, end = self.waiting
            yield start, int(min(length, end + self._count(self.thresholds.pad_ms)))

    def _close(self, end: int) -> Iterator[tuple[int, int]]:
        """Ends the current segment at sample `end`; yields the previous one, now padded."""
        start, self.start, self.pause = self.start, None, None
        assert start is not None
        if end - start <= self._count(self.thresholds.min_speech_ms):
            return
        pad = self._count(self.thresholds.pad_ms)
        before = pad
        if self.waiting is not None:
            first, last = self.waiting
            between = start - last
            before = between // 2 if between < 2 * pad else pad
            yield first, int(last + before)
        self.waiting = int(max(0, start - before)), end

    def _count(self, milliseconds: float) -> float:
        return self.rate * milliseconds / 1000
