"""Speech to text by Whisper or CTC models."""

from __future__ import annotations

import difflib
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clrt.audio.config import is_whisper
from clrt.audio.ctc import CtcSpeech, CtcVocabulary
from clrt.audio.features import Features
from clrt.audio.speech_options import SpeechOptions
from clrt.audio.streams import Sound, is_batch, sounds_of
from clrt.audio.transcript_stream import TranscriptStream
from clrt.audio.transcripts import Transcript
from clrt.errors import InputError, explain_missing_extra
from clrt.runtime.model.model import Model
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.files import expanded
from clrt.util.renamed import present_names

if TYPE_CHECKING:
    from clrt.audio.whisper.speech import WhisperSpeech
    from clrt.audio.whisper.vocabulary import WhisperVocabulary

# Organization of model names without one.
_ORGANISATION = "openai"
# Deprecated name of an option -> its current name.
_RENAMED = {"condition": "condition_on_previous_text"}


class Transcriber:
    """Speech to text by Whisper, or by a CTC model: wav2vec2, HuBERT, WavLM and the like.

    For Whisper `transcribe`, `stream` and calls take these options:

    - `language`: spoken language, as a code or a name; detected by default.
    - `task`: "transcribe" (default), or "translate" into English.
    - `timestamps`: whether segments have times within a window of 30 s; True by default.
    - `prompt`: text assumed to precede the audio; it can show the spelling of names.
    - `condition_on_previous_text`: whether a window is conditioned on the text of earlier windows;
      True by default.
    - `fallback`: limits for decoding a window again (`clrt.audio.TemperatureFallback`).
    - `seed`: seed of the random draws at temperatures above 0; 0 by default.

    Thread-safe.

    Args:
        source: A Hugging Face folder, or its name in the local cache. A Whisper folder needs
            `config.json`, safetensors, `tokenizer.json`, `generation_config.json` and
            `preprocessor_config.json`; clrt-convert's output for it works, too. The folder of a CTC
            model needs the model as ONNX, `preprocessor_config.json` and `vocab.json`.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        strict: Whether a node without a fitting kernel is an error; None reads CLRT_STRICT. Whisper
            uses it for feature extraction only; its encoder and decoder read CLRT_STRICT.
        cache_dir: Folder for compiled programs; None for the default.

    Raises:
        ModelError: A file is missing or damaged, or the model is neither Whisper nor a CTC model.
        UnsupportedError: The model needs an op or an option that clrt does not support.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        device: str | int | DeviceInfo | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        path = _find_source(source)
        self._speech: CtcSpeech | WhisperSpeech
        if is_whisper(path):
            from clrt.audio.whisper.speech import WhisperSpeech

            self._speech = WhisperSpeech(path, device=device, strict=strict, cache_dir=cache_dir)
        else:
            self._speech = CtcSpeech(path, device=device, strict=strict, cache_dir=cache_dir)

    @property
    def model(self) -> Model:
        """The loaded model; a CTC model maps samples to scores `[batch, steps, classes]`."""
        return self._speech.model

    @property
    def features(self) -> Features:
        """Feature extractor of the model's inputs."""
        return self._speech.features

    @property
    def vocabulary(self) -> CtcVocabulary | WhisperVocabulary:
        """Tokens of the model."""
        return self._speech.vocabulary

    def __call__(
        self, audio: Sound, sampling_rate: int | None = None, **options: Any
    ) -> str | list[str]:
        """Transcribes audio to plain text; returns a list for a list of inputs.

        Args:
            audio: Audio of any length: a path, the bytes of a file, or an array `[samples]` or
                `[channels, samples]`; or a list of these.
            sampling_rate: Sampling rate of arrays in Hz; None for the model's.
            options: Options such as `language`, listed in the docstring of `Transcriber`.

        Raises:
            InputError: Audio is damaged, empty, too short for the model, or of a wrong type; or an
                option has no valid value.
        """
        transcripts = self.transcribe(audio, sampling_rate, **options)
        return (
            [one.text for one in transcripts] if isinstance(transcripts, list) else transcripts.text
        )

    def transcribe(
        self, audio: Sound, sampling_rate: int | None = None, **options: Any
    ) -> Transcript | list[Transcript]:
        """Transcribes audio to segments with times; returns a list for a list of inputs.

        Whisper decodes windows of several inputs in one batch, if memory allows.

        Args:
            audio: Audio of any length: a path, the bytes of a file, or an array `[samples]` or
                `[channels, samples]`; or a list of these.
            sampling_rate: Sampling rate of arrays in Hz; None for the model's.
            options: Options such as `language`, listed in the docstring of `Transcriber`.

        Raises:
            InputError: Audio is damaged, empty, too short for the model, or of a wrong type; or an
                option has no valid value.
        """
        sounds, chosen = sounds_of(audio), self._options(options)
        transcripts = self._speech.transcribe(sounds, sampling_rate, chosen)
        return transcripts if is_batch(audio) else transcripts[0]

    def stream(
        self, audio: Sound, sampling_rate: int | None = None, **options: Any
    ) -> TranscriptStream:
        """Transcribes audio to a stream of segments.

        Args:
            audio: Audio of any length: a path, the bytes of a file, or an array `[samples]` or
                `[channels, samples]`.
            sampling_rate: Sampling rate of an array in Hz; None for the model's.
            options: Options such as `language`, listed in the docstring of `Transcriber`.

        Raises:
            InputError: Audio is damaged, empty, too short for the model, or of a wrong type; or an
                option has no valid value.
        """
        if is_batch(audio):
            raise InputError(
                "A stream transcribes one sound; create one stream per sound of the list."
            )
        (sound,) = sounds_of(audio)
        return self._speech.stream(sound, sampling_rate, self._options(options))

    def close(self) -> None:
        """Frees the device memory."""
        self._speech.close()

    def __enter__(self) -> Transcriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _options(self, given: dict[str, Any]) -> SpeechOptions:
        """Returns checked options from keyword arguments, which may have deprecated names."""
        given = present_names("Transcriber", _RENAMED, given, stacklevel=4)
        known = [field.name for field in fields(SpeechOptions)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
                raise InputError(f"There is no option {name!r}; {hint}")
        options = SpeechOptions(**given)
        self._speech.check(options)
        return options


def _find_source(source: str | Path) -> Path:
    """Returns the file or folder of a model, by path or by name in Hugging Face's cache.

    Raises:
        ModelError: There is no such file, folder or cached name.
        UnsupportedError: `source` is a name, and the extra `text`, which finds it, is not
            installed.
    """
    path = expanded(source)
    if os.path.exists(path):  # False for paths on which Path.exists raises
        return path
    with explain_missing_extra("A model by its name"):
        from clrt.models.locate import find_model
    return find_model(source, organisation=_ORGANISATION)
