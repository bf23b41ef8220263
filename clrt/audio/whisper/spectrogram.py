"""Whisper's features of a whole sound, however long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clrt.audio.feature_extractors import FRAME_STEP, LogMel
from clrt.audio.graphs import BLOCKS
from clrt.audio.wav import FloatArray
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.host_limits import check_host_bytes
from clrt.util.math import ceil_div

# Below the loudest moment by so many decades there is silence.
_RANGE = 8.0


@dataclass(frozen=True, eq=False)
class Spectrogram:
    """The features of a sound.

    Attributes:
        values: float32 [mels, frames]; at least a window, of which silence may be a part.
        frames: Those that the sound itself has.
    """

    values: FloatArray
    frames: int

    def window(self, start: int, frames: int) -> FloatArray:
        """Features from a frame on, [mels, frames]; behind the last one they are 0."""
        part = self.values[:, start : start + frames]
        return np.pad(part, ((0, 0), (0, frames - part.shape[1])))


class SpectrogramMaker:
    """Makes features of samples, a window at a time.

    The loudest moment of the whole sound decides what counts as silence, as in transformers and in
    openai/whisper. A sound that is shorter than a window has silence behind it.

    Args:
        preset: The options of the feature extractor.
        device, strict, cache_dir: As in `clrt.load`.
    """

    def __init__(
        self,
        preset: LogMel,
        *,
        device: str | int | DeviceInfo | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        self.preset = preset
        self._model: Model = load(
            preset.decades_graph(), device=device, strict=strict, cache_dir=cache_dir
        )

    def __call__(self, samples: FloatArray) -> Spectrogram:
        """The features of samples, float32 [samples].

        Raises:
            OutOfMemoryError: They take more than CLRT_HOST_LIMIT.
        """
        preset = self.preset
        own = max(len(samples) // preset.hop_length, 1)
        if len(samples) < preset.most_samples:
            samples = np.pad(samples, (0, preset.most_samples - len(samples)))
        frames = len(samples) // preset.hop_length
        check_host_bytes(4 * frames * preset.feature_size, "The features of a sound")
        values = np.empty((preset.feature_size, frames), np.float32)
        at = 0
        for part in self._parts(samples, frames):
            values[:, at : at + part.shape[1]] = part
            at += part.shape[1]
        np.maximum(values, values.max() - np.float32(_RANGE), out=values)
        values += np.float32(4)
        values *= np.float32(0.25)
        return Spectrogram(values, min(own, frames))

    def close(self) -> None:
        """Frees the device memory."""
        self._model.close()

    def _parts(self, samples: FloatArray, frames: int) -> Iterator[FloatArray]:
        """log10 of mel bands of windows, [mels, frames] each."""
        preset, hop = self.preset, self.preset.hop_length
        before = preset.n_fft // 2
        beyond = ceil_div(preset.n_fft, hop) - 1
        for first in range(0, frames, preset.frames):
            count = min(preset.frames, frames - first)
            blocks = ceil_div(count, FRAME_STEP) * FRAME_STEP + beyond
            start = first * hop - before
            sound = _mirrored(samples, start, start + blocks * hop, before)
            found = self._model.run({BLOCKS: sound.reshape(1, blocks, hop)})
            yield found[preset.output][0, :, :count]


def _mirrored(samples: FloatArray, start: int, end: int, margin: int) -> FloatArray:
    """Samples start to end; so many in front of a sound and behind it are its mirror image."""
    part = np.zeros(end - start, np.float32)
    inner = samples[max(start, 0) : end]
    at = max(-start, 0)
    part[at : at + len(inner)] = inner
    if start < 0:
        part[:at] = samples[1 : at + 1][::-1]
    left = min(len(part) - at - len(inner), margin)
    if left > 0:
        size = len(samples)
        part[at + len(inner) :][:left] = samples[size - 1 - left : size - 1][::-1]
    return part
