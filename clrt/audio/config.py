"""Reads preprocessor_config.json, which names a model's feature extractor and its options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from clrt.audio.feature_extractors import FilterBank, LogMel, Preset, Waveform
from clrt.audio.wav import MAX_RATE_HZ, MIN_RATE_HZ
from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.models.huggingface.model_files import file_exists, read_object, read_optional
from clrt.models.sources import is_compiled
from clrt.util.files import expanded

_PRESETS: Mapping[str, type[LogMel] | type[Waveform] | type[FilterBank]] = {
    "WhisperFeatureExtractor": LogMel,
    "Wav2Vec2FeatureExtractor": Waveform,
    "ASTFeatureExtractor": FilterBank,
}
# Feature extractors by `model_type` of config.json, if preprocessor_config.json names none.
_BY_MODEL = {
    "audio-spectrogram-transformer": "ASTFeatureExtractor",
    "whisper": "WhisperFeatureExtractor",
} | dict.fromkeys(
    (
        "data2vec-audio",
        "hubert",
        "sew",
        "sew-d",
        "unispeech",
        "unispeech-sat",
        "wav2vec2",
        "wav2vec2-conformer",
        "wavlm",
    ),
    "Wav2Vec2FeatureExtractor",
)
# Minimum and maximum of options. They bound host memory: the DFT matrix has n_fft * n_fft elements,
# and features take a few hundred MiB at most.
_BOUNDS = {
    "sampling_rate": (MIN_RATE_HZ, MAX_RATE_HZ),
    "n_fft": (4, 4096),
    "hop_length": (1, 4096),
    "chunk_length": (1, 600),
    "num_mel_bins": (1, 512),
    "feature_size": (1, 512),
    "max_length": (1, 65_536),
}
# Options that clrt supports with one value only.
_FIXED = {"dither": 0.0, "padding_side": "right"}
PREPROCESSOR = "preprocessor_config.json"


def read_preset(source: str | Path | Mapping[str, Any]) -> Preset:
    """Reads the feature extractor of an audio model from the model's preprocessor_config.json.

    Args:
        source: Path or contents of the preprocessor_config.json, or path of the model's folder.
            In a folder without this file, processor_config.json is read.

    Raises:
        ModelError: A file is missing or damaged, or a value is out of range.
        UnsupportedError: The feature extractor or an option is not supported.
        InputError: `source` is neither a path nor a dict.
    """
    if isinstance(source, Mapping):
        return preset_of(source, "The configuration")
    if not isinstance(source, str | Path):
        raise InputError(f"A configuration is a path or a dict, not {type(source).__name__}.")
    path = expanded(source)
    if not os.path.isdir(path):  # False for paths on which Path.is_dir raises
        return preset_of(read_object(path), f"'{path}'")
    values: Mapping[str, Any]
    file, inner = path / PREPROCESSOR, path / "processor_config.json"
    if file_exists(file) or not file_exists(inner):
        values, name = read_object(file), f"'{file}'"
    else:
        extractor = read_object(inner).get("feature_extractor")
        values, name = extractor if isinstance(extractor, Mapping) else {}, f"'{inner}'"
    if "feature_extractor_type" not in values:
        kind = _BY_MODEL.get(str(read_optional(path / "config.json").get("model_type")))
        values = {**values, **({} if kind is None else {"feature_extractor_type": kind})}
    return preset_of(values, name)


def is_whisper(source: Path) -> bool:
    """Returns whether a path is a folder with Whisper's config.json, or any compiled file.

    Args:
        source: Path of a model's folder or file.

    Raises:
        ModelError: config.json is damaged.
    """
    return is_compiled(source) or (
        read_optional(source / "config.json").get("model_type") == "whisper"
    )


def preset_of(values: Mapping[str, Any], name: str) -> Preset:
    """Creates the feature extractor from the contents of a preprocessor_config.json.

    Args:
        values: The contents.
        name: Name of the file, the subject of error messages.

    Raises:
        ModelError: A value is missing, of another type or out of range.
        UnsupportedError: The feature extractor or an option is not supported.
    """
    kind = values.get("feature_extractor_type")
    known = ", ".join(_PRESETS)
    if not isinstance(kind, str):
        raise ModelError(f"{name} has no feature_extractor_type; clrt supports {known}.")
    if kind not in _PRESETS:
        raise UnsupportedError(f"{name} has the feature extractor {kind}; clrt supports {known}.")
    for option, wanted in _FIXED.items():
        if option in values and values[option] != wanted:
            raise UnsupportedError(
                f"{name} has {option} = {values[option]!r}; clrt supports only {wanted!r}."
            )
    preset = _PRESETS[kind]
    options = {
        f.name: _value(f.name, values[f.name], f.default, name)
        for f in fields(preset)
        if f.name in values
    }
    extractor = preset(**options)
    if isinstance(extractor, LogMel):
        _check_frames(extractor, values, name)
    if isinstance(extractor, FilterBank) and extractor.std == 0:
        raise ModelError(
            f"{name} has std = 0; expected a nonzero number, because features are divided by it."
        )
    return extractor


def _value(option: str, given: object, default: object, name: str) -> Any:
    """Returns an option of a feature extractor after checking its type and range.

    Args:
        option: Name of the option.
        given: Value of the option in the file.
        default: Default value, of the type that `given` must have.
        name: Name of the file, the subject of error messages.

    Raises:
        ModelError: The value has another type, or is out of range.
    """
    if isinstance(default, bool):
        fits = isinstance(given, bool)
    elif isinstance(default, float):
        fits = isinstance(given, int | float) and abs(given) < 1e30  # no infinity and no NaN
    else:
        low, high = _BOUNDS[option]
        fits = isinstance(given, int) and not isinstance(given, bool) and low <= given <= high
        default = f"{low} to {high}"
    if not fits:
        raise ModelError(f"{name} has {option} = {given!r}; expected a value like {default}.")
    return given


def _check_frames(preset: LogMel, values: Mapping[str, Any], name: str) -> None:
    if values.get("padding_value", 0) != 0:
        raise UnsupportedError(f"{name} pads with {values['padding_value']!r}; clrt pads with 0.")
    if preset.most_samples <= 2 * preset.n_fft or preset.hop_length > preset.n_fft:
        raise ModelError(
            f"{name} has frames of {preset.n_fft} samples, {preset.hop_length} apart, in "
            f"{preset.chunk_length} s; expected many frames that overlap."
        )
