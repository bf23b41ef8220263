"""Where there is speech in a sound, by models such as Silero VAD."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clrt.audio.chunks import Chunks
from clrt.audio.streams import Sound
from clrt.errors import InputError, ModelError
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo

# Samples a second that the models are made for: samples of a chunk, and of the end of the chunk
# before, which they see in front of it.
_SIZES = {16_000: (512, 64), 8_000: (256, 32)}
_INPUT, _STATE, _RATE = "input", "state", "sr"
_OUTPUTS = "output", "stateN"
_UNITS = 128


class Segment(NamedTuple):
    """A stretch of speech, in seconds from the start of the sound."""

    start: float
    end: float


@dataclass(frozen=True)
class SpeechThresholds:
    """What makes a segment of the probabilities of chunks. The defaults are Silero's.

    Attributes:
        speech: Speech starts with a chunk of at least this probability.
        silence: It may end with one below this; None is 0.15 less than `speech`, at least 0.01.
        min_speech_ms: Segments that are not longer are dropped.
        min_silence_ms: A shorter pause does not end a segment.
        pad_ms: Is added at both ends of a segment, or half of what lies between two.

    Raises:
        InputError: A value is out of range.
    """

    speech: float = 0.5
    silence: float | None = None
    min_speech_ms: float = 250
    min_silence_ms: float = 100
    pad_ms: float = 30

    def __post_init__(self) -> None:
        for name, most in (
            ("speech", 1.0),
            ("silence", 1.0),
            ("min_speech_ms", 3.6e6),
            ("min_silence_ms", 3.6e6),
            ("pad_ms", 3.6e6),
        ):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise InputError(f"{name} is {value!r}; expected 0 to {most:g}.")

    @property
    def ends_below(self) -> float:
        """The probability below which speech may end."""
        return max(self.speech - 0.15, 0.01) if self.silence is None else self.silence


class VoiceActivity:
    """Finds speech with a model of Silero VAD's form: a chunk and a state in, both out.

    The state stays on the device from chunk to chunk. Each call has a state of its own, so that
    calls may come from several threads.

    Args:
        model: An ONNX file with inputs `input` and `state` [2, 1, 128], where it has it `sr`, and
            outputs `output` and `stateN`: Silero VAD 5 or later.
        sampling_rate: 16000 or 8000, which the model must be made for. Sound is resampled to it.
        thresholds: What makes a segment.
        device: As in `clrt.load`.
        strict: As in `clrt.load`.
        cache_dir: As in `clrt.load`.

    Attributes:
        model: The model.
        thresholds: What makes a segment.

    Raises:
        ModelError: The model is of another form.
        InputError: There are no chunks for the sampling rate.

    Source: `get_speech_timestamps` of the package silero-vad, without its longest duration.
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
            raise InputError(f"sampling_rate is {sampling_rate!r}; the models take {listing}.")
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
        """Segments of speech, each as soon as it is settled; a file is never held as a whole.

        Args:
            audio: A path, the bytes of a file, or an array [samples] or [channels, samples].
            sampling_rate: Samples a second of an array; None says that it is the model's.

        Raises:
            InputError: The sound is damaged or of another kind.
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
        """How likely there is speech in each chunk, of 32 ms.

        Args:
            audio: As for `segments`.
            sampling_rate: As for `segments`.

        Raises:
            InputError: The sound is damaged or of another kind.
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
        output, next_state = _OUTPUTS
        state = self.model.new_state({_STATE: next_state}, {_STATE: (2, 1, _UNITS)})
        given = np.zeros((1, self._context + self._samples), np.float32)
        for chunk in chunks:
            given[0, : self._context] = given[0, self._samples :]
            given[0, self._context :] = chunk
            inputs = {_INPUT: given, **self._rates}
            yield float(self.model.run(inputs, [output], state=state)[output].reshape(-1)[0])


@dataclass
class SegmentFinder:
    """Segments of chunk probabilities, in samples. The last one waits for the next one's start."""

    thresholds: SpeechThresholds
    rate: int
    samples: int
    at: int = 0
    start: int | None = None
    pause: int | None = None
    waiting: tuple[int, int] | None = field(default=None)

    def push(self, probability: float) -> Iterator[tuple[int, int]]:
        """The segments that one more chunk settles."""
        at, self.at = self.at, self.at + self.samples
        if probability >= self.thresholds.speech:
            self.pause = None
            self.start = at if self.start is None else self.start
        elif probability < self.thresholds.ends_below and self.start is not None:
            self.pause = at if self.pause is None else self.pause
            if at - self.pause >= self._count(self.thresholds.min_silence_ms):
                yield from self._close(self.pause)

    def finish(self, length: int) -> Iterator[tuple[int, int]]:
        """The segments that are left.

        Args:
            length: Samples of the sound.
        """
        if self.start is not None:
            yield from self._close(length)
        if self.waiting is not None:
            start, end = self.waiting
            yield start, int(min(length, end + self._count(self.thresholds.pad_ms)))

    def _close(self, end: int) -> Iterator[tuple[int, int]]:
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
