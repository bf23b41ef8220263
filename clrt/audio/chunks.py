"""Audio in chunks of a fixed size."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np

from clrt.audio.resample import check_rate
from clrt.audio.streams import Sound, mono_blocks
from clrt.audio.wav import FloatArray
from clrt.errors import InputError


class Chunks:
    """Iterable of audio chunks, float32 `[samples]`. Files are read piece by piece.

    Args:
        source: Audio: a path, the bytes of a file, or an array `[samples]` or
            `[channels, samples]`.
        samples: Samples per chunk. The last chunk is padded with zeros.
        sampling_rate: Sampling rate of the chunks, in Hz.
        source_rate: Sampling rate of an array, in Hz; None for `sampling_rate`.

    Attributes:
        samples_read: Number of samples returned so far, without padding.

    Raises:
        InputError: An option is out of range; or, while iterating, the audio is damaged, empty, or
            of a wrong type.
    """

    def __init__(
        self,
        source: Sound,
        samples: int = 512,
        sampling_rate: int = 16_000,
        source_rate: int | None = None,
    ) -> None:
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise InputError(f"samples is {samples!r}; expected a whole number, 1 or more.")
        self._blocks = mono_blocks(source, source_rate, to=check_rate(sampling_rate))
        self._samples = samples
        self.samples_read = 0

    @property
    def taken(self) -> int:
        """Deprecated name of `samples_read`; reading it warns."""
        warnings.warn("use Chunks.samples_read", DeprecationWarning, stacklevel=2)
        return self.samples_read

    def __iter__(self) -> Iterator[FloatArray]:
        size, rest = self._samples, np.empty(0, np.float32)
        for block in self._blocks:
            whole = np.concatenate([rest, block])
            end = len(whole) - len(whole) % size
            for start in range(0, end, size):
                self.samples_read += size
                yield whole[start : start + size]
            rest = whole[end:]
        if len(rest):
            self.samples_read += len(rest)
            yield np.pad(rest, (0, size - len(rest)))
