"""Test signals, and WAV files assembled from bytes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
RATE = 16_000


def signal(kind: str, samples: int, rate: int = RATE) -> NDArray[np.float32]:
    """A sound of a kind, float32 [samples]."""
    t = np.arange(samples) / rate
    if kind == "noise":
        made = 0.3 * np.random.default_rng(samples).standard_normal(samples)
    elif kind == "tone":
        made = np.sin(2 * np.pi * 440 * t)
    elif kind == "chirp":
        made = 0.5 * np.sin(2 * np.pi * (100 * t + 100 * t * t)) * np.exp(-t)
    else:
        assert kind == "silence"
        made = np.zeros(samples)
    return made.astype(np.float32)


def wav_bytes(
    data: bytes,
    *,
    codec: int = 1,
    channels: int = 1,
    rate: int = RATE,
    bits: int = 16,
    size: int | None = None,
    extensible: bool = False,
    before: bytes = b"",
) -> bytes:
    """A WAV file.

    Args:
        data: The samples as they are stored.
        size: What the header says of them; None for the truth.
        extensible: Whether the codec stands in the extended format.
        before: Chunks in front of the format.
    """
    frame = channels * bits // 8
    tag = 0xFFFE if extensible else codec
    fmt = struct.pack("<HHIIHH", tag, channels, rate, rate * frame, frame, bits)
    if extensible:
        guid = struct.pack("<H", codec) + bytes.fromhex("000000001000800000aa00389b71")
        fmt += struct.pack("<HHI", 22, bits, 0) + guid
    body = before + b"fmt " + struct.pack("<I", len(fmt)) + fmt
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def pcm16(samples: Any) -> bytes:
    """Samples as they are stored in 16 bits."""
    return np.asarray(np.round(np.asarray(samples) * 32767), "<i2").tobytes()
