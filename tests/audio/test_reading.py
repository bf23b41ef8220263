"""Reading sound from files, bytes and arrays, and refusing invalid ones."""

from __future__ import annotations

import io
import struct
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrt.audio import Chunks, read_audio
from clrt.errors import ClrtError, InputError, OutOfMemoryError, UnsupportedError
from tests.audio.sounds import pcm16, signal, wav_bytes


def test_wav_of_wave_module_is_read_from_path_or_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a b.wav"
    stored = np.arange(-3000, 3000, dtype="<i2").reshape(-1, 2)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(stored.tobytes())
    expected = stored.astype(np.float64).mean(axis=1) / 32768
    for source in (path, str(path), path.read_bytes(), memoryview(path.read_bytes())):
        found = read_audio(source, to=16_000)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("codec", "bits", "data", "expected"),
    [
        (1, 8, bytes([0, 128, 255]), [-1, 0, 127 / 128]),
        (1, 16, struct.pack("<3h", -32768, 0, 16384), [-1, 0, 0.5]),
        (1, 24, bytes([0, 0, 0x80, 0xFF, 0xFF, 0xFF, 0, 0, 0x40]), [-1, -(2.0**-23), 0.5]),
        (1, 32, struct.pack("<3i", -(2**31), 1, 2**30), [-1, 2.0**-31, 0.5]),
        (3, 32, struct.pack("<3f", -1.5, 0, 0.25), [-1.5, 0, 0.25]),
        (3, 64, struct.pack("<3d", -1.5, 0, 0.25), [-1.5, 0, 0.25]),
    ],
)
def test_wav_sample_formats_are_decoded(
    codec: int, bits: int, data: bytes, expected: list[float], extensible: bool
) -> None:
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # a chunk of odd size has a byte behind it
    file = wav_bytes(data, codec=codec, bits=bits, extensible=extensible, before=odd)
    np.testing.assert_array_equal(read_audio(file, to=16_000), np.float32(expected))


def test_wav_of_unknown_size_is_read_to_end() -> None:
    file = wav_bytes(pcm16([0.5] * 100_001), size=0xFFFFFFFF)
    assert len(read_audio(file, to=16_000)) == 100_001


@pytest.mark.parametrize("size", [0x7FFFF000, 0x80000000, 0xFFFFFFFE, 400])
@pytest.mark.parametrize("cut", [0, 1, 50])
def test_truncated_wav_is_read_with_warning(size: int, cut: int) -> None:
    """Programs that write to a pipe leave such WAV files; an incomplete last sample is dropped."""
    samples = pcm16([0.5] * 100)
    file = wav_bytes(samples[: len(samples) - cut], size=size)
    said = f"promises {size // 2} samples and {100 - (cut + 1) // 2} are there, which are read"
    with pytest.warns(UserWarning, match=said):
        found = read_audio(file, to=16_000)
    np.testing.assert_array_equal(found, np.full(100 - (cut + 1) // 2, 0.5, np.float32))


def test_channels_are_averaged_to_mono() -> None:
    left, right = signal("tone", 1000), signal("noise", 1000)
    expected = (left.astype(np.float64) + right) / 2
    both = np.stack([left, right])
    np.testing.assert_allclose(read_audio(both, to=16_000), expected, atol=1e-7)
    whole = np.round(32767 * both / 2).astype(np.int16)
    found = read_audio(whole, 16_000, to=16_000)
    np.testing.assert_allclose(found, whole.mean(axis=0) / 32768, atol=1e-7)
    doubles = read_audio(left.astype(np.float64), to=16_000)
    np.testing.assert_array_equal(doubles, left)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (wav_bytes(b"", channels=0), "has 0 channels; a WAV file has 1 to 256"),
        (wav_bytes(b"", rate=0), "has 0 samples per second; expected 1,000"),
        (wav_bytes(b""), "The file has no samples"),
        (wav_bytes(b"")[:30], "damaged WAV file: it has no format"),
        (wav_bytes(b"")[:38], "damaged WAV file: it has no samples"),
        (b"", "The file is empty"),
        (wav_bytes(struct.pack("<f", float("nan")), codec=3, bits=32), "infinite or NaN"),
        (np.array([np.inf], np.float32), "infinite or NaN"),
        (np.zeros(0, np.float32), "The array has no samples"),
        (np.zeros((0, 5), np.float32), "has 0 channels"),
        (np.zeros((500, 2), np.float32), r"Pass \.T if samples come first"),
        (np.zeros((2, 2, 2), np.float32), "Pass a list for a batch"),
        (np.zeros(5, np.int64), "array of floats or int16; this is ndarray of int64"),
        ({"a": 1}, "this is dict of object"),
        (Path(__file__).parent, "cannot be read: "),
        ("a\0b.wav", "cannot be read: embedded null"),
        ("no/such/file.wav", "'no/such/file.wav' cannot be read: No such file"),
    ],
)
def test_invalid_audio_file_error_is_one_line(source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_audio(source, to=16_000)
    assert "\n" not in str(caught.value)


def test_wav_with_wrong_frame_size_is_refused() -> None:
    file = bytearray(wav_bytes(pcm16([0.1] * 4)))
    struct.pack_into("<H", file, 32, 7)  # bytes of a frame
    with pytest.raises(InputError, match="1 samples of 16 bits do not take 7 bytes"):
        read_audio(bytes(file), to=16_000)


@pytest.mark.parametrize(
    "source", [b"this is no sound at all", wav_bytes(b"\0" * 9, codec=7, bits=8)]
)
def test_non_pcm_file_without_soundfile_names_extra(
    source: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(UnsupportedError, match=r"no WAV file of PCM or floats.*its extra 'audio'"):
        read_audio(source, to=16_000)


def test_flac_is_read_by_soundfile(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile", reason="the extra `audio` is not installed")
    path = tmp_path / "a.flac"
    samples = np.stack([signal("tone", 70_001), signal("chirp", 70_001)], 1)
    soundfile.write(path, samples, 16_000, subtype="PCM_24")
    expected = samples.astype(np.float64).mean(axis=1)
    for source in (path, path.read_bytes()):
        np.testing.assert_allclose(read_audio(source, to=16_000), expected, atol=1e-6)
    with pytest.raises(InputError, match="is not a sound file that soundfile supports"):
        read_audio(b"this is no sound at all", to=16_000)


def test_corrupted_wav_header_reads_or_raises_clrt_error() -> None:
    """Each header byte is changed; the result is samples or a `ClrtError`."""
    whole = wav_bytes(pcm16(signal("tone", 50)), extensible=True)
    told = 0
    for place in range(len(whole) - 100):
        for byte in (0, 1, 0x7F, 0xFF):
            try:
                read_audio(whole[:place] + bytes([byte]) + whole[place + 1 :], to=16_000)
            except ClrtError:
                told += 1
    assert told > 50


def test_resampled_sound_beyond_host_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_HOST_LIMIT", "1MiB")
    assert len(read_audio(np.zeros(200_000, np.float32), to=16_000)) == 200_000
    with pytest.raises(OutOfMemoryError, match="The samples of a sound"):
        read_audio(np.zeros(200_000, np.float32), 8_000, to=16_000)


@pytest.mark.parametrize("samples", [1, 511, 512, 513, 70_000])
def test_chunks_cover_file_in_order_and_pad_end(samples: int, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(pcm16(signal("noise", samples))))
    chunks = Chunks(path, 512)
    found = list(chunks)
    assert {c.shape for c in found} == {(512,)}
    whole = np.concatenate(found)
    np.testing.assert_array_equal(whole[:samples], read_audio(path, to=16_000))
    assert not whole[samples:].any()
    assert chunks.samples_read == samples and len(found) == -(-samples // 512)


def test_chunks_are_resampled_like_whole_sound() -> None:
    samples = signal("chirp", 200_000, 44_100)
    found = np.concatenate(list(Chunks(samples, 512, 16_000, 44_100)))
    expected = read_audio(samples, 44_100, to=16_000)
    np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-6)


def test_invalid_chunk_options_are_refused() -> None:
    with pytest.raises(InputError, match="samples is 0"):
        Chunks(io.BytesIO(), 0)
    with pytest.raises(InputError, match="sampling_rate is 7"):
        Chunks(np.zeros(4, np.float32), 4, 7)
