"""Reads audio from files, bytes and arrays as mono blocks at the requested sampling rate."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from clrt.audio.resample import check_rate, resampled
from clrt.audio.wav import (
    BLOCK_FRAMES,
    MAX_CHANNELS,
    FloatArray,
    is_wav,
    read_frames,
    read_header,
)
from clrt.errors import InputError, explain_missing_extra
from clrt.ir.dtypes import native
from clrt.util.files import expanded
from clrt.util.host_limits import check_host_bytes

Sound: TypeAlias = Any
"""A path, the bytes of a file, or an array `[samples]` or `[channels, samples]`; float or int16."""


def sounds_of(given: Sound) -> list[Sound]:
    """Returns the audio inputs of a call as a list.

    Args:
        given: One input, or a list of inputs. A list of numbers is one input.

    Raises:
        InputError: `given` is an empty list.
    """
    if not is_batch(given):
        return [np.array(given, np.float32) if isinstance(given, list | tuple) else given]
    if not given:
        raise InputError("The list of sounds is empty; pass at least one.")
    return list(given)


def is_batch(given: Sound) -> bool:
    """Returns whether the audio argument of a call is a list of inputs, not a list of numbers."""
    is_list = isinstance(given, list | tuple)
    return is_list and not (given and isinstance(given[0], int | float | np.number))


def read_audio(
    source: Sound,
    sampling_rate: int | None = None,
    *,
    to: int,
    most: int | None = None,
) -> FloatArray:
    """Reads audio as mono, float32 `[samples]`, full scale 1.

    Args:
        source: A path, the bytes of a file, or an array `[samples]` or `[channels, samples]` of
            floats or int16. clrt reads WAV files, the package soundfile reads other files.
        sampling_rate: Sampling rate of an array in Hz; None for `to`. Ignored for files.
        to: Sampling rate of the result, in Hz.
        most: Maximum number of samples to read; None for all.

    Raises:
        InputError: The source is damaged, empty, or of a wrong type.
        UnsupportedError: The file is not WAV, and soundfile is not installed.
        OutOfMemoryError: The samples exceed CLRT_HOST_LIMIT.
    """
    parts: list[FloatArray] = []
    count = 0
    with closing(mono_blocks(source, sampling_rate, to=to)) as blocks:
        for block in blocks:
            parts.append(block)
            count += len(block)
            check_host_bytes(4 * count, "The samples of a sound")
            if most is not None and count >= most:
                break
    if not count:
        raise InputError(f"{_name(source)} has no samples.")
    return np.concatenate(parts)[:most]


def mono_blocks(
    source: Sound, sampling_rate: int | None = None, *, to: int
) -> Generator[FloatArray]:
    """Yields the blocks of audio as mono, float32 `[samples]`, without loading a whole file.

    Args:
        source: A path, the bytes of a file, or an array `[samples]` or `[channels, samples]` of
            floats or int16.
        sampling_rate: Sampling rate of an array in Hz; None for `to`. Ignored for files.
        to: Sampling rate of the result, in Hz.

    Raises:
        InputError: The source is damaged, empty, or of a wrong type.
        UnsupportedError: The file is not WAV, and soundfile is not installed.
    """
    if isinstance(source, str | Path | bytes | bytearray | memoryview):
        with _stream(source) as stream:
            rate, frames = _decoded(stream, _name(source))
            yield from resampled(map(_to_mono, _check_finite(frames, source)), rate, to)
        return
    rate = to if sampling_rate is None else check_rate(sampling_rate)
    signal = _array(source)
    starts = range(0, signal.shape[1], BLOCK_FRAMES)
    pieces = (signal[:, i : i + BLOCK_FRAMES].T for i in starts)
    floats = (_scaled(p) for p in pieces)
    yield from resampled(map(_to_mono, _check_finite(floats, source)), rate, to)


@contextmanager
def _stream(source: str | Path | bytes | bytearray | memoryview) -> Iterator[BinaryIO]:
    """Yields a binary stream over the bytes of a source or over the file at a path."""
    if isinstance(source, bytes | bytearray | memoryview):
        yield io.BytesIO(source)
        return
    try:
        stream = open(expanded(source), "rb")  # noqa: SIM115
    except (OSError, ValueError) as error:  # ValueError: the path contains a null character
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"'{source}' cannot be read: {reason}.") from error
    with stream:
        yield stream


def _name(source: Sound) -> str:
    if isinstance(source, str | Path):
        return f"'{source}'"
    return "The file" if isinstance(source, bytes | bytearray | memoryview) else "The array"


def _decoded(stream: BinaryIO, name: str) -> tuple[int, Iterator[FloatArray]]:
    """Opens an audio file, and returns its sampling rate and its samples.

    Args:
        stream: The file.
        name: Name of the file in error messages.

    Returns:
        Sampling rate in Hz, and an iterator of blocks, float32 `[frames, channels]`.

    Raises:
        InputError: The file is empty, damaged, or not an audio file.
        UnsupportedError: The file is not WAV, and soundfile is not installed.
    """
    if is_wav(stream):
        header = read_header(stream, name)
        if header.is_known:
            return header.rate, read_frames(stream, header, name)
        stream.seek(0)
    if not stream.read(1):
        raise InputError(f"{name} is empty.")
    stream.seek(0)
    with explain_missing_extra(f"{name} is no WAV file of PCM or floats; reading it"):
        import soundfile
    try:
        file = soundfile.SoundFile(stream)
    except Exception as error:  # any type: soundfile's decoders raise several
        raise InputError(
            f"{name} is not a sound file that soundfile supports; convert it to WAV."
        ) from error
    return check_rate(file.samplerate), _decoded_frames(file, name)


def _decoded_frames(file: Any, name: str) -> Iterator[FloatArray]:
    try:
        while len(block := file.read(BLOCK_FRAMES, "float32", always_2d=True)):
            yield block
    except Exception as error:  # any type: soundfile's decoders raise several
        raise InputError(f"{name} is a damaged sound file; copy or record it again.") from error


def _array(given: Any) -> np.ndarray[Any, Any]:
    """Returns an array as `[channels, samples]`, after checking its type and shape.

    Raises:
        InputError: `given` is not `[samples]` or `[channels, samples]` of floats or int16.
    """
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"A sound is no {type(given).__name__}; pass a path or an array."
        ) from error
    array = native(array)
    if array.dtype != np.int16 and array.dtype.kind != "f":
        raise InputError(
            f"A sound is a path, the bytes of a file, or an array of floats or int16; this is "
            f"{type(given).__name__} of {array.dtype}."
        )
    if array.ndim not in (1, 2):
        raise InputError(
            f"A sound is an array [samples] or [channels, samples]; its shape is "
            f"{list(array.shape)}. Pass a list for a batch."
        )
    array = np.atleast_2d(array)
    if not 1 <= len(array) <= MAX_CHANNELS:
        raise InputError(
            f"A sound [channels, samples] of shape {list(array.shape)} has {len(array)} channels; "
            f"expected 1 to {MAX_CHANNELS}. Pass .T if samples come first."
        )
    return array


def _scaled(block: np.ndarray[Any, Any]) -> FloatArray:
    scale = np.float32(1 / (1 << 15) if block.dtype == np.int16 else 1)
    return block.astype(np.float32) * scale


def _check_finite(blocks: Iterator[FloatArray], source: Sound) -> Iterator[FloatArray]:
    for block in blocks:
        if not np.isfinite(block).all():
            raise InputError(f"{_name(source)} has infinite or NaN samples.")
        yield block


def _to_mono(block: FloatArray) -> FloatArray:
    """Averages the channels of `[frames, channels]`; returns `[frames]`."""
    return block[:, 0] if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32)
