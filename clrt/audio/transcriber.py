"""Speech to text, by whichever kind of model a folder has."""

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

if TYPE_CHECKING:
    from clrt.audio.whisper.speech import WhisperSpeech
    from clrt.audio.whisper.vocabulary import WhisperVocabulary

# Whose model a name without an organisation is.
_ORGANISATION = "openai"


class Transcriber:
    """Speech to text by Whisper, or by a CTC model: wav2vec2, HuBERT, WavLM and the like.

    Of Whisper `transcribe` takes, and so do `stream` and a call:

    - `language`: what is spoken, as a code or a name; by default the model finds out.
    - `task`: "transcribe", or "translate" into English.
    - `timestamps`: whether parts have times within 30 s, as they have by default.
    - `prompt`: text that seems to come before the sound: names, and how they are written.
    - `condition`: whether each 30 s are told what was said before them, as they are by default.
    - `fallback`: when a text is drawn anew (`clrt.audio.Fallback`).
    - `seed`: of what is drawn; 0 by default.

    Threads may share a transcriber.

    Args:
        source: A Hugging Face folder, or its name in the local cache. Of Whisper with
            `config.json`, safetensors, `tokenizer.json`, `generation_config.json` and
            `preprocessor_config.json`; or what clrt-convert made of it. Of a CTC model with the
            model as ONNX, `preprocessor_config.json` and `vocab.json`.
        device: As in `clrt.load`.
        strict: As in `clrt.load`.
        cache_dir: As in `clrt.load`.

    Raises:
        ModelError: A file is missing or damaged, or the model is of another form.
        UnsupportedError: The model has an op, or asks for an option, that clrt lacks.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        device: str | int | DeviceInfo | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        path = _found(source)
        self._speech: CtcSpeech | WhisperSpeech
        if is_whisper(path):
            from clrt.audio.whisper.speech import WhisperSpeech

            self._speech = WhisperSpeech(path, device=device, strict=strict, cache_dir=cache_dir)
        else:
            self._speech = CtcSpeech(path, device=device, strict=strict, cache_dir=cache_dir)

    @property
    def model(self) -> Model:
        """The model. Of a CTC model: samples in, scores [batch, moments, classes] out."""
        return self._speech.model

    @property
    def features(self) -> Features:
        """What makes of sound what the model takes."""
        return self._speech.features

    @property
    def vocabulary(self) -> CtcVocabulary | WhisperVocabulary:
        """The tokens of the model."""
        return self._speech.vocabulary

    def __call__(
        self, audio: Sound, sampling_rate: int | None = None, **options: Any
    ) -> str | list[str]:
        """The text of a sound; a list for a list of sounds.

        Args:
            audio: As for `Features`; of any length.
            sampling_rate: As for `Features`.
            options: As the class lists them.

        Raises:
            InputError: A sound is damaged, empty, too short for the model, or of another kind; or
                an option has no valid value.
        """
        made = self.transcribe(audio, sampling_rate, **options)
        return [one.text for one in made] if isinstance(made, list) else made.text

    def transcribe(
        self, audio: Sound, sampling_rate: int | None = None, **options: Any
    ) -> Transcript | list[Transcript]:
        """The text of a sound in parts with times; a list for a list of sounds, which Whisper hears
        together.

        Args:
            audio: As for `Features`; of any length.
            sampling_rate: As for `Features`.
            options: As the class lists them.

        Raises:
            InputError: As a call.
        """
        sounds, chosen = sounds_of(audio), self._options(options)
        made = self._speech.transcribe(sounds, sampling_rate, chosen)
        return made if is_batch(audio) else made[0]

    def stream(
        self, audio: Sound, sampling_rate: int | None = None, **options: Any
    ) -> TranscriptStream:
        """The segments of a sound as they come.

        Args:
            audio: One sound, as for `Features`; of any length.
            sampling_rate: As for `Features`.
            options: As the class lists them.

        Raises:
            InputError: As a call.
        """
        if is_batch(audio):
            raise InputError("A stream is of one sound; give each in the list a stream of its own.")
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
        known = [field.name for field in fields(SpeechOptions)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
                raise InputError(f"There is no option {name!r}; {hint}")
        options = SpeechOptions(**given)
        self._speech.check(options)
        return options


def _found(source: str | Path) -> Path:
    """The file or folder of a model: a path, or a name in Hugging Face's cache.

    Raises:
        ModelError: Nothing is there.
        UnsupportedError: A name is looked up by what the extra `text` brings.
    """
    path = expanded(source)
    if os.path.exists(path):  # where Path's raises, False
        return path
    with explain_missing_extra("A model by its name"):
        from clrt.models.locate import find_model
    return find_model(source, organisation=_ORGANISATION)
