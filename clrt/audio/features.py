"""Computes a model's audio features on a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from clrt.audio.config import read_preset
from clrt.audio.feature_extractors import Preset
from clrt.audio.streams import Sound, read_audio, sounds_of
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo, choose_device
from clrt.runtime.opencl.tensor_factory import tensor


class Features:
    """Converts audio to a model's inputs, by the feature extractor that its folder describes.

    Supports WhisperFeatureExtractor, Wav2Vec2FeatureExtractor and ASTFeatureExtractor of
    transformers. Only the first call compiles, for audio of any length. Thread-safe.

    Args:
        preset: Feature extractor, as read by `from_config`.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        strict: Whether a node without a fitting kernel is an error; None reads CLRT_STRICT.
        cache_dir: Folder for compiled programs; None for the default.

    Attributes:
        preset: Options of the feature extractor, with transformers' names.
        device: Device of the computation.
    """

    def __init__(
        self,
        preset: Preset,
        *,
        device: str | int | DeviceInfo | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        self.preset = preset
        self.device = choose_device(device)
        self._strict = strict
        self._cache_dir = cache_dir
        self._model: Model | None = None
        self._lock = Lock()

    @classmethod
    def from_config(
        cls,
        source: str | Path | Mapping[str, Any],
        *,
        device: str | int | DeviceInfo | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> Features:
        """Creates the feature extractor of a model's configuration.

        Args:
            source: A Hugging Face folder, the path of its preprocessor_config.json, or the file's
                contents as a dict with `feature_extractor_type`.
            device: "auto", "cpu", "gpu", part of a device name, or an index; None reads
                CLRT_DEVICE.
            strict: Whether a node without a fitting kernel is an error; None reads CLRT_STRICT.
            cache_dir: Folder for compiled programs; None for the default.

        Raises:
            ModelError: A file is missing or damaged, or a value is out of range.
            UnsupportedError: The feature extractor or an option is not supported.
            DeviceError: The requested device is absent.
        """
        return cls(read_preset(source), device=device, strict=strict, cache_dir=cache_dir)

    @property
    def sampling_rate(self) -> int:
        """Sampling rate of the model in Hz; other audio is resampled."""
        return self.preset.sampling_rate

    def __call__(
        self,
        audio: Sound | list[Sound],
        sampling_rate: int | None = None,
        *,
        device_outputs: bool = False,
    ) -> dict[str, Any]:
        """Returns a model's inputs by name.

        Args:
            audio: A path, the bytes of a file, or an array `[samples]` or `[channels, samples]` of
                floats or int16; a list of these is a batch. Channels are averaged.
            sampling_rate: Sampling rate of arrays in Hz; None for the model's. Ignored for files.
            device_outputs: Whether to return DeviceTensors, which `Model.run` uses without a copy.

        Returns:
            By name: for Whisper `input_features`, float32 `[batch, mels, frames]`; for wav2vec2
            `input_values`, float32 `[batch, samples]`, padded to the longest input; for AST
            `input_values`, float32 `[batch, frames, mels]`. If configured, also `attention_mask`,
            int64 `[batch, frames or samples]`.

        Raises:
            InputError: Audio is damaged, empty, or of a wrong type.
            UnsupportedError: A file is not WAV, and soundfile is not installed.
            OutOfMemoryError: The samples exceed CLRT_HOST_LIMIT.
        """
        preset = self.preset
        sounds = [
            read_audio(s, sampling_rate, to=preset.sampling_rate, most=preset.most_samples)
            for s in sounds_of(audio)
        ]
        inputs: dict[str, Any] = dict(preset.mask(sounds))
        feeds = preset.feeds(sounds)
        model = self._get_model()
        if model is None:
            inputs = {**feeds, **inputs}
        if device_outputs:
            inputs = {name: tensor(a, device=self.device.index) for name, a in inputs.items()}
        if model is None:
            return inputs
        return {**model.run(feeds, device_outputs=device_outputs), **inputs}

    def close(self) -> None:
        """Frees the device memory."""
        with self._lock:
            if self._model is not None:
                self._model.close()
            self._model = None

    def __enter__(self) -> Features:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get_model(self) -> Model | None:
        with self._lock:
            if self._model is None and (graph := self.preset.graph()) is not None:
                self._model = load(
                    graph,
                    device=self.device.index,
                    strict=self._strict,
                    cache_dir=self._cache_dir,
                )
            return self._model
