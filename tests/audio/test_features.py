"""Audio features against the algorithms of transformers' extractors, in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import clrt
from clrt.audio import Features
from clrt.audio.mel import hertz_to_mel, mel_to_hertz, slaney_filters
from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.runtime.opencl.devices import DeviceInfo
from tests.audio.sounds import RATE, Doubles, pcm16, signal, wav_bytes
from tests.harness import SWEEP
from tests.models.onnx_text import DEVICES, parsed

WHISPER = {"feature_extractor_type": "WhisperFeatureExtractor"}
WAV2VEC2 = {"feature_extractor_type": "Wav2Vec2FeatureExtractor"}
AST = {"feature_extractor_type": "ASTFeatureExtractor"}
LENGTHS = [1, 399, 400, 401, 31_234, 479_999, 480_000, 480_001, 600_000]


def slaney_mel(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * np.log(hertz / 1000) / np.log(6.4)


def slaney_hertz(mel: float) -> float:
    return 200 * mel / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)


def bank(count: int, bins: int, place: Any, edges: list[float]) -> Doubles:
    """Triangles between edges, [bins, count]; `assign_offsets` says where a bin lies."""
    made = np.zeros((bins, count))
    for k in range(count):
        left, centre, right = edges[k : k + 3]
        for i in range(bins):
            rising = (place(i) - left) / (centre - left)
            made[i, k] = max(0.0, min(rising, (right - place(i)) / (right - centre)))
    return made


def whisper(samples: Any, mels: int) -> Doubles:
    """[mels, 3000]. Source: WhisperFeatureExtractor."""
    whole = np.zeros(480_000)
    whole[: len(samples)] = samples[:480_000]
    whole = np.pad(whole, 200, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = np.lib.stride_tricks.sliding_window_view(whole, 400)[::160][:3000]
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    edges = [slaney_hertz(m) for m in np.linspace(0, slaney_mel(8000), mels + 2)]
    weights = bank(mels, 201, lambda i: 40.0 * i, edges)
    for k in range(mels):
        weights[:, k] *= 2 / (edges[k + 2] - edges[k])
    decades = np.log10(np.maximum(power @ weights, 1e-10)).T
    return (np.maximum(decades, decades.max() - 8) + 4) / 4


def test_mel_scale_matches_published_values() -> None:
    """Values of librosa's documentation, and of Whisper's first feature extractor for 8 kHz."""
    hertz = np.array([60.0, 110, 220, 440, 8000, 11_025])
    mel = [0.9, 1.65, 3.3, 6.6, 45.245640471924965, 49.91059448015905]
    np.testing.assert_allclose(hertz_to_mel(hertz), mel, rtol=1e-12)
    np.testing.assert_allclose(mel_to_hertz(np.array(mel)), hertz, rtol=1e-12)
    expected = [200 / 3, 400 / 3, 200, 800 / 3, 1000 / 3]
    np.testing.assert_allclose(mel_to_hertz(np.arange(1.0, 6)), expected, rtol=1e-12)


def test_slaney_mel_filters_have_unit_area() -> None:
    """Area (weight times hertz) of bands with many bins."""
    filters = slaney_filters(80, 16_384, RATE, 8000.0)
    np.testing.assert_allclose(filters.sum(axis=0) * RATE / 16_384, 1, atol=2e-3)


@DEVICES
@pytest.mark.parametrize("mels", [80, 128])
def test_whisper_log_mel_features_match_float64(
    device: DeviceInfo, mels: int, tmp_path: Path
) -> None:
    config = {**WHISPER, "feature_size": mels}
    with Features.from_config(config, device=device, strict=True, cache_dir=tmp_path) as features:
        for samples in LENGTHS:
            for kind in ("noise", "tone", "chirp", "silence"):
                given = signal(kind, samples)
                found = features(given)["input_features"]
                assert found.dtype == np.float32 and found.shape == (1, mels, 3000)
                np.testing.assert_allclose(found[0], whisper(given, mels), atol=1e-4)


@SWEEP
def test_features_of_new_lengths_compile_no_program(device: DeviceInfo, tmp_path: Path) -> None:
    for config in (WHISPER, AST):
        with Features.from_config(config, device=device, cache_dir=tmp_path) as features:
            features(signal("noise", 20_000))
            model = features._get_model()
            assert model is not None
            builds = model._session.programs.builds
            assert builds
            for samples in (1, 7_777, 160_000, 500_000):
                features([signal("noise", samples), signal("tone", 50)])
            assert model._session.programs.builds == builds


@DEVICES
def test_features_of_batches_files_and_rates_match_single_sounds(
    device: DeviceInfo, tmp_path: Path
) -> None:
    path = tmp_path / "a.wav"
    slow = signal("chirp", 8_000, 8_000)
    path.write_bytes(wav_bytes(pcm16(slow), rate=8_000))
    loud = np.stack([signal("tone", 40_000), signal("noise", 40_000)])
    with Features.from_config({**WHISPER, "return_attention_mask": True}, device=device) as f:
        found = f([path, loud, path.read_bytes()])
        assert found["input_features"].shape == (3, 80, 3000)
        for row, one in zip(found["input_features"], (path, loud, path.read_bytes()), strict=True):
            np.testing.assert_allclose(row, f(one)["input_features"][0], atol=1e-6)
        again = f(slow, 8_000)["input_features"][0]
        np.testing.assert_allclose(found["input_features"][0], again, atol=0.05)  # 16 bits
        mixed = loud.astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(found["input_features"][1], whisper(mixed, 80), atol=1e-4)
        assert found["attention_mask"].dtype == np.int64
        assert found["attention_mask"].sum(axis=1).tolist() == [100, 250, 100]
        numbers = f([0.0, 0.5, -0.5])  # a list of numbers is one sound
        expected = whisper(np.array([0, 0.5, -0.5]), 80)
        np.testing.assert_allclose(numbers["input_features"], expected[None], atol=1e-4)


def normalized(samples: Doubles) -> Doubles:
    return (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)


@DEVICES
def test_wav2vec2_samples_are_normalized_and_padded(device: DeviceInfo) -> None:
    """With a mask each sound is normalised alone; without, with its padding, as in transformers."""
    masked = Features.from_config({**WAV2VEC2, "return_attention_mask": True}, device=device)
    plain = Features.from_config(WAV2VEC2, device=device)
    raw = Features.from_config({**WAV2VEC2, "do_normalize": False}, device=device)
    for lengths in ([1], [401, 400], [5, 600_000, 399]):
        sounds = [signal("noise", n) + np.float32(0.1 * k) for k, n in enumerate(lengths)]
        sounds[0][:] += np.float32(3)
        longest = max(lengths)
        whole = np.stack([np.pad(s, (0, longest - len(s))) for s in sounds]).astype(np.float64)
        found = masked(sounds)
        assert found["attention_mask"].dtype == np.int64
        assert found["attention_mask"].shape == found["input_values"].shape
        for row, mask, sound in zip(*found.values(), sounds, strict=True):
            expected = np.zeros(longest)
            expected[: len(sound)] = normalized(sound.astype(np.float64))
            np.testing.assert_allclose(row, expected, atol=1e-4)
            assert mask.tolist() == [1] * len(sound) + [0] * (longest - len(sound))
        (values,) = plain(sounds).values()
        expected = np.stack([normalized(row) for row in whole])
        np.testing.assert_allclose(values, expected, atol=1e-4)
        np.testing.assert_array_equal(raw(sounds)["input_values"], whole.astype(np.float32))
    assert not plain(signal("silence", 1000))["input_values"].any()


def kaldi(samples: Any) -> Doubles:
    """[1024, 128]. Source: ASTFeatureExtractor, where torchaudio is not installed."""

    def mel(hertz: float) -> float:
        return float(1127 * np.log(1 + hertz / 700))

    edges = list(np.linspace(mel(20), mel(8000), 130))
    weights = bank(128, 257, lambda i: mel(31.25 * i), edges)
    made = np.zeros((1024, 128))
    for k in range(min(1024, max(0, 1 + (len(samples) - 400) // 160))):
        frame = np.asarray(samples[160 * k : 160 * k + 400], np.float64)
        frame = frame - frame.mean()
        frame = np.append(0.03 * frame[0], frame[1:] - 0.97 * frame[:-1]) * np.hanning(400)
        power = np.abs(np.fft.rfft(frame, 512)) ** 2
        made[k] = np.log(np.maximum(power @ weights, 2.0**-23))
    return (made + 4.2677393) / (2 * 4.5689974)


@DEVICES
def test_ast_kaldi_filter_bank_matches_float64(device: DeviceInfo) -> None:
    """A tone leaves bands 11 decades below it, beyond the accuracy of float32."""
    with Features.from_config(AST, device=device, strict=True) as features:
        for samples in (1, 399, 400, 559, 560, 20_000, 164_080, 200_000):
            for kind, far in (("noise", 1e-4), ("chirp", 1e-4), ("tone", 5e-4), ("silence", 1e-5)):
                given = signal(kind, samples)
                (found,) = features(given).values()
                np.testing.assert_allclose(found[0], kaldi(given), atol=far)
        sounds = [signal("noise", n) for n in (300, 1000, 50_000)]
        for row, sound in zip(features(sounds)["input_values"], sounds, strict=True):
            np.testing.assert_allclose(row, kaldi(sound), atol=1e-4)


@DEVICES
def test_features_as_device_tensors_feed_model(device: DeviceInfo) -> None:
    text = """
        g (float[b, m, f] input_features, int64[b, f] attention_mask) => (float[b] y) {
          kept = Cast<to = 1>(attention_mask)
          means = ReduceMean<keepdims = 0>(input_features, one)
          x = Mul(means, kept)
          y = ReduceSum<keepdims = 0>(x, one)
        }
    """.replace("{", "<int64[1] one = {1}> {", 1)
    config = {**WHISPER, "return_attention_mask": True}
    sounds = [signal("noise", 3000), signal("chirp", 70_000)]
    with (
        Features.from_config(config, device=device) as features,
        clrt.load(parsed(text), device=device) as model,
    ):
        inputs = features(sounds, device_outputs=True)
        assert all(isinstance(t, clrt.DeviceTensor) for t in inputs.values())
        session = onnxruntime.InferenceSession(parsed(text), providers=["CPUExecutionProvider"])
        (expected,) = session.run(None, features(sounds))
        np.testing.assert_allclose(model.run(inputs)["y"], expected, rtol=1e-5)
    with Features.from_config({**WAV2VEC2, "return_attention_mask": True}, device=device) as waves:
        inputs = waves(sounds, device_outputs=True)
        for name, array in waves(sounds).items():
            assert isinstance(inputs[name], clrt.DeviceTensor)
            np.testing.assert_array_equal(inputs[name].numpy(), array)


def write(folder: Path, name: str, values: object) -> Path:
    (folder / name).write_text(json.dumps(values), "utf-8")
    return folder / name


def test_feature_config_is_found_in_folder_file_or_processor(tmp_path: Path) -> None:
    file = write(tmp_path, "preprocessor_config.json", {**WHISPER, "feature_size": 128})
    for source in (tmp_path, str(file)):
        assert Features.from_config(source).preset.feature_size == 128  # type: ignore[union-attr]
    file.unlink()
    write(tmp_path, "processor_config.json", {"feature_extractor": {**AST, "max_length": 10}})
    found = Features.from_config(tmp_path)
    assert found.preset.max_length == 10  # type: ignore[union-attr]
    assert found(signal("noise", 9999))["input_values"].shape == (1, 10, 128)
    # Of models older than the field: config.json says what they are.
    write(tmp_path, "preprocessor_config.json", {"do_normalize": True, "sampling_rate": 8000})
    write(tmp_path, "config.json", {"model_type": "hubert"})
    assert Features.from_config(tmp_path).sampling_rate == 8000


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({}, ModelError, "has no feature_extractor_type; clrt supports WhisperFeatureExtractor"),
        ({"feature_extractor_type": "ClapFeatureExtractor"}, UnsupportedError, "has the feature"),
        ({**WHISPER, "dither": 0.1}, UnsupportedError, r"dither = 0\.1"),
        ({**WAV2VEC2, "padding_side": "left"}, UnsupportedError, "padding_side = 'left'"),
        ({**WHISPER, "padding_value": 1.0}, UnsupportedError, "pads with"),
        ({**WHISPER, "n_fft": 10**9}, ModelError, "n_fft = 1000000000; expected a value like 4 to"),
        ({**WHISPER, "feature_size": "80"}, ModelError, "feature_size = '80'"),
        ({**WHISPER, "hop_length": 0}, ModelError, "hop_length = 0"),
        ({**WHISPER, "hop_length": 1600}, ModelError, "frames that overlap"),
        ({**WHISPER, "return_attention_mask": 1}, ModelError, "expected a value like False"),
        ({**AST, "std": 0.0}, ModelError, "std = 0"),
        ({**AST, "mean": float("nan")}, ModelError, "mean = nan"),
        (7, InputError, "a path or a dict, not int"),
    ],
)
def test_invalid_feature_config_is_refused(
    config: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Features.from_config(config)


def test_missing_or_malformed_feature_config_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"preprocessor_config\.json is missing; download"):
        Features.from_config(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{", "utf-8")
    with pytest.raises(ModelError, match="is not valid JSON"):
        Features.from_config(tmp_path)
    write(tmp_path, "preprocessor_config.json", [])
    with pytest.raises(ModelError, match="must hold a JSON object"):
        Features.from_config(tmp_path)


def test_empty_list_of_audio_is_refused() -> None:
    with pytest.raises(InputError, match="list of sounds is empty"):
        Features.from_config(WAV2VEC2)([])
