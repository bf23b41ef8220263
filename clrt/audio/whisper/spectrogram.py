"""Whisper's log-mel features of a whole audio input of any length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clrt.audio.feature_extractors import FRAME_STEP, LogMel
from clrt.audio.graphs import BLOCKS
from clrt.audio.wav import FloatArray
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.fast_dataclass import dataclass
from clrt.util.host_limits import check_host_bytes
from clrt.util.math import ceil_div

# Dynamic range in decades: lower values are clamped to the maximum less this.
_RANGE = 8.0


@dataclass(frozen=True, eq=False)
class Spectrogram:
    """Log-mel features of an audio input.

    Attributes:
        values: float32 `[mels, frames]`; padded with silence to one window or more.
        frames: Number of frames without padding.
    """

    values: FloatArray
    frames: int

    def window(self, start: int, frames: int) -> FloatArray:
        """Returns the features of a window, `[mels, frames]`, padded with zeros at the end.

        Args:
            start: First frame of the window.
            frames: Number of frames of the window.
        """
        part = self.values[:, start : start + frames]
        return np.pad(part, ((0, 0), (0, frames - part.shape[1])))


class SpectrogramMaker:
    """Computes Whisper's log-mel features of audio of any length, one window at a time.

    The maximum over the whole audio determines the clamping, as in transformers and openai/whisper.
    Audio shorter than a window is padded with silence.

    Args:
        preset: Options of the feature extractor.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        strict: Whether a node without a fitting kernel is an error; None reads CLRT_STRICT.
        cache_dir: Folder for compiled programs; None for the default.
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
        """Computes the log-mel features of samples, float32 `[samples]`.

        Raises:
            OutOfMemoryError: The features exceed CLRT_HOST_LIMIT.
        """
        preset = self.preset
        audio_frames = max(len(samples) // preset.hop_length, 1)
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
        return Spectrogram(values, min(audio_frames, frames))

    def close(self) -> None:
        """Frees the device memory."""
        self._model.close()

    def _parts(self, samples: FloatArray, frames: int) -> Iterator[FloatArray]:
        """Yields log10 of mel bands, one array `[mels, frames of the window]` per window.

        The last window may have fewer frames than the others.

        Args:
            samples: float32 `[samples]`.
            frames: Total number of frames of all windows.
        """
        preset, hop = self.preset, self.preset.hop_length
        before = preset.n_fft // 2
        beyond = ceil_div(preset.n_fft, hop) - 1
        for first in range(0, frames, preset.frames):
            count = min(preset.frames, frames - first)
            blocks = ceil_div(count, FRAME_STEP) * FRAME_STEP + beyond
            start = first * hop - before
            sound = _mirrored(samples, start, start + blocks * hop, before)
            outputs = self._model.run({BLOCKS: sound.reshape(1, blocks, hop)})
            yield outputs[preset.output][0, :, :count]


def _mirrored(samples: FloatArray, start: int, end: int, margin: int) -> FloatArray:
    """Returns samples `start` to `end` of audio that is continued by its mirror image, then zeros.

    Args:
        samples: The audio, float32 `[samples]`.
        start: Index of the first sample, at least `-margin`.
        end: Index after the last sample, which may be beyond the audio.
        margin: Maximum number of mirrored samples at each end.
    """
    part = np.zeros(end - start, np.float32)
    inner = samples[max(start, 0) : end]
    at = max(-start, 0)
    part[at : at + len(inner)] = inner
    if start < 0:
        part[:at] = samples[1 : at + 1][::-1]
    mirrored = min(len(part) - at - len(inner), margin)
    if mirrored > 0:
        size = len(samples)
        part[at + len(inner) :][:mirrored] = samples[size - 1 - mirrored : size - 1][::-1]
    return part
