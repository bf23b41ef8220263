"""Voice activity detection by a Silero-like model, against ONNX Runtime and silero-vad."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from clrt.audio import Segment, SpeechThresholds, VoiceActivity
from clrt.audio.voice_activity import SegmentFinder
from clrt.errors import InputError, ModelError
from clrt.runtime.opencl.devices import DeviceInfo
from tests.audio.sounds import pcm16, signal, wav_bytes
from tests.models.onnx_text import DEVICES, parsed

# How loud a chunk is, smoothed by a state; another threshold at 8 kHz.
LOUDNESS = parsed(
    """
    g (float[b, n] input, float[2, b, 128] state, int64 sr)
      => (float[b, 1] output, float[2, b, 128] stateN)
    <float half = {0.5}, float steep = {200.0}, int64 rate = {16000},
     int64[2] zero_and_last = {0, 2}, int64[1] one = {1}, float low = {0.01}, float high = {0.02}> {
      square = Mul(input, input)
      loud = ReduceMean<keepdims = 1>(square, one)
      new = Mul(loud, half)
      old = Mul(state, half)
      stateN = Add(old, new)
      mean = ReduceMean<keepdims = 0>(stateN, zero_and_last)
      is_fast = Equal(sr, rate)
      least = If (is_fast) <
        then_branch = t () => (float[a, c] p) { p = Sub(loud, low) },
        else_branch = e () => (float[a, c] q) { q = Sub(loud, high) }
      >
      wide = Unsqueeze(mean, one)
      both = Add(least, wide)
      x = Mul(both, steep)
      output = Sigmoid(x)
    }
    """
)


def talk(rate: int) -> Any:
    """Noise and pauses of several lengths, float32."""
    rng = np.random.default_rng(3)
    parts = []
    for pause, speech in ((0.5, 1.0), (0.06, 0.3), (0.15, 0.8), (0.4, 0.1), (0.9, 0.7), (0.2, 0.5)):
        parts += [np.zeros(int(pause * rate)), 0.25 * rng.standard_normal(int(speech * rate))]
    return np.concatenate([*parts, np.zeros(rate // 10)]).astype(np.float32)


def probabilities(samples: Any, rate: int, model: bytes = LOUDNESS) -> list[float]:
    """What ONNX Runtime says of each chunk behind the end of the one before."""
    size, context = (512, 64) if rate == 16_000 else (256, 32)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    state, found = np.zeros((2, 1, 128), np.float32), []
    whole = np.concatenate([np.zeros(context), samples, np.zeros(-len(samples) % size)])
    for start in range(0, len(whole) - context, size):
        chunk = whole[None, start : start + context + size].astype(np.float32)
        feed = {"input": chunk, "state": state, "sr": np.array(rate)}
        output, state = session.run(None, feed)
        found.append(float(output[0, 0]))
    return found


def timestamps(
    likely: Sequence[float], length: int, rate: int, size: int, t: SpeechThresholds
) -> list[tuple[int, int]]:
    """Segments in samples. Source: silero-vad's get_speech_timestamps, as its README describes."""
    ends_below = max(t.speech - 0.15, 0.01) if t.silence is None else t.silence
    found: list[list[int]] = []
    start = pause = -1
    for place, p in zip(range(0, len(likely) * size, size), likely, strict=True):
        if p >= t.speech:
            pause = -1
            if start < 0:
                start = place
        if p < ends_below and p < t.speech and start >= 0:
            if pause < 0:
                pause = place
            if place - pause >= rate * t.min_silence_ms / 1000:
                found.append([start, pause])
                start = pause = -1
    if start >= 0:
        found.append([start, length])
    found = [[a, b] for a, b in found if b - a > rate * t.min_speech_ms / 1000]
    pad = rate * t.pad_ms / 1000
    for k, segment in enumerate(found):
        if k == 0:
            segment[0] = int(max(0, segment[0] - pad))
        if k == len(found) - 1:
            segment[1] = int(min(length, segment[1] + pad))
            continue
        between = found[k + 1][0] - segment[1]
        share = between // 2 if between < 2 * pad else pad
        segment[1] = int(segment[1] + share)
        found[k + 1][0] = int(max(0, found[k + 1][0] - share))
    return [(a, b) for a, b in found]


@DEVICES
@pytest.mark.parametrize("rate", [16_000, 8_000])
def test_voice_segments_match_silero_timestamps(
    device: DeviceInfo, rate: int, tmp_path: Path
) -> None:
    samples, path = talk(rate), tmp_path / "talk.wav"
    path.write_bytes(wav_bytes(samples.tobytes(), codec=3, bits=32, rate=rate))
    likely, size = probabilities(samples, rate), 512 if rate == 16_000 else 256
    counts = set()
    for t in (
        SpeechThresholds(),
        SpeechThresholds(0.9, 0.3, 0, 0, 100),
        SpeechThresholds(0.4, pad_ms=0),
    ):
        options: Any = {"device": device, "strict": True, "sampling_rate": rate}
        with VoiceActivity(LOUDNESS, thresholds=t, **options) as voice:
            np.testing.assert_allclose(list(voice.probabilities(path)), likely, atol=1e-5)
            expected = timestamps(likely, len(samples), rate, size, t)
            assert list(voice.segments(path)) == [Segment(a / rate, b / rate) for a, b in expected]
            assert list(voice.segments(samples)) == list(voice.segments(path))
        counts.add(len(expected))
    assert len(counts) > 1 and min(counts) > 1


@pytest.mark.skipif(find_spec("silero_vad") is None, reason="pip install --no-deps silero-vad")
@DEVICES
@pytest.mark.parametrize("rate", [16_000, 8_000])
def test_silero_vad_model_matches_onnxruntime(device: DeviceInfo, rate: int) -> None:
    """The input is a hum with the pitch and pauses of a voice."""
    spec = find_spec("silero_vad")
    assert spec is not None and spec.origin is not None
    model = (Path(spec.origin).parent / "data" / "silero_vad.onnx").read_bytes()
    t = np.arange(6 * rate) / rate
    turns = np.cumsum(120 + 20 * np.sin(2 * np.pi * 3 * t)) / rate
    hum = sum(np.sin(2 * np.pi * k * turns) / k for k in range(1, 30))
    samples = (0.1 * hum * (1 + np.sin(2 * np.pi * 4 * t)) * (t % 2 < 1.3)).astype(np.float32)
    likely, size = probabilities(samples, rate, model), 512 if rate == 16_000 else 256
    low = SpeechThresholds(0.1, 0.05, 60)
    options: Any = {"device": device, "strict": True, "sampling_rate": rate}
    with VoiceActivity(model, thresholds=low, **options) as voice:
        np.testing.assert_allclose(list(voice.probabilities(samples)), likely, atol=1e-5)
        expected = timestamps(likely, len(samples), rate, size, low)
        assert expected
        assert list(voice.segments(samples)) == [Segment(a / rate, b / rate) for a, b in expected]


def test_segment_finder_matches_silero_on_random_probabilities() -> None:
    rng = np.random.default_rng(0)
    found_some = 0
    for _ in range(300):
        likely = np.clip(np.cumsum(rng.normal(0, 0.2, 120)) % 2 - 0.5, 0, 1)
        t = SpeechThresholds(
            float(rng.uniform(0.05, 0.95)),
            None if rng.integers(2) else float(rng.uniform(0, 0.9)),
            *(float(rng.choice([0, 30, 100, 250, 700])) for _ in range(3)),
        )
        length = 120 * 512 - int(rng.integers(512))
        finder = SegmentFinder(t, 16_000, 512)
        found = [s for p in likely for s in finder.push(float(p))]
        found += finder.finish(length)
        assert found == timestamps(list(likely), length, 16_000, 512, t)
        found_some += len(found)
    assert found_some > 300


def test_voice_segments_stream_before_end_of_file() -> None:
    """A truncated file warns at its end, after all but the last segment."""
    samples = talk(16_000)
    file = wav_bytes(pcm16(np.concatenate([samples, samples, samples])))
    with VoiceActivity(LOUDNESS, device="cpu") as voice:
        whole = list(voice.segments(file))
        found = []
        with pytest.warns(UserWarning, match="promises 274080 samples and 273580 are there"):
            for segment in voice.segments(file[:-1000]):
                found.append(segment)
        assert len(found) == len(whole) > 1 and found[:-1] == whole[:-1]
        assert found[-1].start == whole[-1].start and found[-1].end == 273_580 / 16_000


def test_silence_has_no_voice_segments() -> None:
    with VoiceActivity(LOUDNESS, device="cpu") as voice:
        assert list(voice.segments(signal("silence", 40_000))) == []
        assert list(voice.segments(signal("silence", 1))) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speech": 1.5}, r"speech is 1\.5; expected 0 to 1"),
        ({"silence": -1}, "silence is -1"),
        ({"pad_ms": float("nan")}, "pad_ms is nan"),
    ],
)
def test_invalid_speech_thresholds_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SpeechThresholds(**options)


def test_voice_model_of_other_interface_is_refused() -> None:
    other = parsed("g (float[n] x) => (float[n] y) { y = Relu(x) }")
    with pytest.raises(ModelError, match="takes x and gives y; one for voice activity takes input"):
        VoiceActivity(other, device="cpu")
    with pytest.raises(
        InputError, match="sampling_rate is 44100; the models support 16000 or 8000"
    ):
        VoiceActivity(LOUDNESS, sampling_rate=44_100, device="cpu")
