"""Reads WAV files as float32 samples: PCM of 8 to 32 bits, and floats.

The module `wave` of the standard library reads no floats, and the extensible format only from
Python 3.12 on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError, counted, warn_user
from clrt.util.fast_dataclass import dataclass

FloatArray = NDArray[np.float32]

# Limits of plausible headers: a header outside them counts as damaged.
MAX_CHANNELS = 256
MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 768_000
# Maximum number of frames read at a time, which bounds memory.
BLOCK_FRAMES = 1 << 16
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_DTYPES: Mapping[tuple[int, int], np.dtype[Any]] = {
    (_PCM, 8): np.dtype("u1"),
    (_PCM, 16): np.dtype("<i2"),
    (_PCM, 24): np.dtype("u1"),  # three bytes per sample
    (_PCM, 32): np.dtype("<i4"),
    (_FLOAT, 32): np.dtype("<f4"),
    (_FLOAT, 64): np.dtype("<f8"),
}
# Size in headers of programs that write to a pipe, since they do not know the size yet.
_UNKNOWN_BYTES = 0xFFFFFFFF


@dataclass(frozen=True)
class WavHeader:
    """Header of a WAV file.

    Attributes:
        codec: 1 for PCM, 3 for floats.
        channels: Number of channels.
        rate: Frames per second.
        bits: Stored bits per sample.
        nbytes: Total size of the samples in bytes; None if unknown.
    """

    codec: int
    channels: int
    rate: int
    bits: int
    nbytes: int | None

    @property
    def is_known(self) -> bool:
        """Whether `read_frames` supports the codec and sample size."""
        return (self.codec, self.bits) in _DTYPES

    @property
    def frame_bytes(self) -> int:
        """Size in bytes of a frame, which is one sample per channel."""
        return self.channels * self.bits // 8


def is_wav(stream: BinaryIO) -> bool:
    """Returns whether a stream starts as a WAV file does, and rewinds the stream."""
    head = stream.read(12)
    stream.seek(0)
    return len(head) == 12 and head[:4] == b"RIFF" and head[8:] == b"WAVE"


def read_header(stream: BinaryIO, name: str) -> WavHeader:
    """Reads the header of a WAV file; leaves the stream at the first sample.

    Args:
        stream: The file, at its start.
        name: Name of the file in error messages.

    Raises:
        InputError: The header is damaged, or the file has no samples.
    """
    stream.seek(12)
    format_fields: tuple[int, int, int, int, int] | None = None
    while len(head := stream.read(8)) == 8:
        kind, size = struct.unpack("<4sI", head)
        if kind == b"data":
            if format_fields is None:
                break
            return _checked(format_fields, size, name)
        start = stream.tell()
        if kind == b"fmt ":
            format_fields = _format(stream.read(min(size, 40)))
        stream.seek(start + size + size % 2)
    what = "format" if format_fields is None else "samples"
    raise InputError(f"{name} is a damaged WAV file: it has no {what}; record or convert it again.")


def _format(chunk: bytes) -> tuple[int, int, int, int, int] | None:
    """Parses a format chunk of a WAV file.

    Returns:
        (codec, channels, frames per second, bytes per frame, bits per sample); None if the chunk
        is too short.
    """
    if len(chunk) < 16:
        return None
    codec, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", chunk[:16])
    if codec == _EXTENSIBLE and len(chunk) >= 26:
        codec = struct.unpack("<H", chunk[24:26])[0]
    return codec, channels, rate, frame, bits


def _checked(found: tuple[int, int, int, int, int], size: int, name: str) -> WavHeader:
    """Returns the header of a WAV file after checking its values.

    Args:
        found: Result of `_format`.
        size: Size of the samples in bytes, as the file states it.
        name: Name of the file in error messages.

    Raises:
        InputError: A value is implausible.
    """
    codec, channels, rate, frame, bits = found
    if not 1 <= channels <= MAX_CHANNELS:
        raise InputError(
            f"{name} has {counted(channels, 'channel')}; a WAV file has 1 to {MAX_CHANNELS}."
        )
    if not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
        raise InputError(
            f"{name} has {rate} samples per second; expected {MIN_RATE_HZ:,} to {MAX_RATE_HZ:,}."
        )
    header = WavHeader(codec, channels, rate, bits, None if size == _UNKNOWN_BYTES else size)
    if header.is_known and frame != header.frame_bytes:
        raise InputError(
            f"{name} is a damaged WAV file: {channels} samples of {bits} bits do not take {frame} "
            "bytes; record or convert it again."
        )
    return header


def read_frames(stream: BinaryIO, header: WavHeader, name: str) -> Iterator[FloatArray]:
    """Yields the samples of a WAV file in blocks `[frames, channels]`, full scale 1.

    If the header promises more samples than there are, as in truncated files and files written to a
    pipe, yields the available samples and warns.

    Args:
        stream: The file, at its first sample.
        header: Header of the file.
        name: Name of the file, for the warning.
    """
    width = header.frame_bytes
    promised = None if header.nbytes is None else header.nbytes // width
    done = 0
    while promised is None or done < promised:
        wanted = BLOCK_FRAMES if promised is None else min(BLOCK_FRAMES, promised - done)
        data = stream.read(wanted * width)
        frames = len(data) // width
        if frames:
            yield _samples(data[: frames * width], header).reshape(frames, header.channels)
        done += frames
        if frames < wanted:
            if promised is not None:
                warn_user(
                    f"{name} has a header that promises {counted(promised, 'sample')} and {done} "
                    "are there, which are read; if the file did not come out of a pipe it is cut "
                    "short."
                )
            return


def _samples(data: bytes, header: WavHeader) -> FloatArray:
    """Returns interleaved PCM or float samples as float32; PCM is scaled to -1 ... 1."""
    raw = np.frombuffer(data, _DTYPES[header.codec, header.bits])
    bits = header.bits
    if bits == 24:  # becomes the upper three bytes of int32
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = raw.reshape(-1, 3)
        raw, bits = wide.view("<i4").reshape(-1), 32
    samples: FloatArray = raw.astype(np.float32)
    if header.codec == _PCM:
        if bits == 8:  # the only unsigned format
            samples -= np.float32(128)
        samples *= np.float32(0.5 ** (bits - 1))
    return samples
