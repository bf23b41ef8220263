"""Sound to the features that models take, on a device."""

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
    """Makes of sound what a model takes, as the feature extractor of its folder does.

    Presets are those of transformers: WhisperFeatureExtractor, Wav2Vec2FeatureExtractor and
    ASTFeatureExtractor. Sound of any length runs without a compile once the first has. Calls may
    come from several threads.

    Args:
        preset: What `from_config` reads.
        device: As in `clrt.load`.
        strict: As in `clrt.load`.
        cache_dir: As in `clrt.load`.

    Attributes:
        preset: The options of the feature extractor, by transformers' names.
        device: The device that it runs on.
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
        """The features that a model's configuration asks for.

        Args:
            source: A Hugging Face folder, the path of its preprocessor_config.json, or what that
                holds, as a dict with `feature_extractor_type`.
            device: As in `clrt.load`.
            strict: As in `clrt.load`.
            cache_dir: As in `clrt.load`.

        Raises:
            ModelError: A file is missing or damaged, or a value is out of range.
            UnsupportedError: It asks for a feature extractor or an option that clrt lacks.
            DeviceError: The device asked for is absent.
        """
        return cls(read_preset(source), device=device, strict=strict, cache_dir=cache_dir)

    @property
    def sampling_rate(self) -> int:
        """Samples a second that the model takes; sound of other rates is resampled."""
        return self.preset.sampling_rate

    def __call__(
        self,
        audio: Sound | list[Sound],
        sampling_rate: int | None = None,
        *,
        device_outputs: bool = False,
    ) -> dict[str, Any]:
        """The inputs of a model, by their names.

        Args:
            audio: A path, the bytes of a file, or an array [samples] or [channels, samples] of
                floats or int16; a list of these is a batch. Channels are mixed to one.
            sampling_rate: Samples a second of arrays; None says that it is the model's. A file says
                its own.
            device_outputs: Give DeviceTensors, which `Model.run` takes where they lie.

        Returns:
            Of Whisper `input_features`, float32 [batch, mels, frames]; of wav2vec2 `input_values`,
            float32 [batch, samples], padded to the longest; of AST `input_values`, float32 [batch,
            frames, mels]. Where the configuration asks for it, also `attention_mask`, int64
            [batch, frames or samples].

        Raises:
            InputError: A sound is damaged, empty, or of another kind.
            UnsupportedError: A file is not WAV, and soundfile is not installed.
            OutOfMemoryError: The samples take more than CLRT_HOST_LIMIT.
        """
        preset = self.preset
        sounds = [
            read_audio(s, sampling_rate, to=preset.sampling_rate, most=preset.most_samples)
            for s in sounds_of(audio)
        ]
        made: dict[str, Any] = dict(preset.mask(sounds))
        feeds = preset.feeds(sounds)
        model = self._get_model()
        if model is None:
            made = {**feeds, **made}
        if device_outputs:
            made = {name: tensor(a, device=self.device.index) for name, a in made.items()}
        if model is None:
            return made
        return {**model.run(feeds, device_outputs=device_outputs), **made}

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
