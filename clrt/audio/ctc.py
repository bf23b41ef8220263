"""Speech to text by CTC models such as wav2vec2, which output a letter per time step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from clrt.audio.features import Features
from clrt.audio.speech_options import SpeechOptions
from clrt.audio.streams import Sound
from clrt.audio.transcript_stream import TranscriptStream
from clrt.audio.transcripts import Transcript, TranscriptSegment
from clrt.errors import InputError, ModelError, ShapeError, counted
from clrt.models.huggingface.model_files import read_object, read_optional
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import expanded


@dataclass(frozen=True)
class CtcVocabulary:
    """Tokens of a CTC model's classes.

    Attributes:
        tokens: Text of each class's token, by class index.
        blank: Class index of the CTC blank, which separates repeated letters.
        delimiter: Token between words.
        lower: Whether decoded text is converted to lower case.
    """

    tokens: Sequence[str]
    blank: int
    delimiter: str = "|"
    lower: bool = False

    @classmethod
    def read(cls, folder: str | Path) -> CtcVocabulary:
        """Reads vocab.json and tokenizer_config.json of a Hugging Face folder.

        Raises:
            ModelError: A file is missing or damaged.
        """
        path = expanded(folder)
        vocabulary = read_object(path / "vocab.json")
        options = read_optional(path / "tokenizer_config.json")
        pad = _token_text(options.get("pad_token"), "[PAD]" if "[PAD]" in vocabulary else "<pad>")
        classes = list(vocabulary.values())
        if sorted(c if type(c) is int else -1 for c in classes) != list(range(len(classes))):
            raise ModelError(
                f"'{path / 'vocab.json'}' must map the tokens to distinct ids from 0 on; "
                "download the model's own file."
            )
        if pad not in vocabulary:
            raise ModelError(
                f"'{path / 'vocab.json'}' lacks the padding token {pad!r}, which CTC uses as the "
                "blank; download the model's own file."
            )
        return cls(
            sorted(vocabulary, key=vocabulary.__getitem__),
            vocabulary[pad],
            _token_text(options.get("word_delimiter_token"), "|"),
            options.get("do_lower_case") is True,
        )

    def decode(self, classes: Sequence[int] | np.ndarray[Any, Any]) -> str:
        """Converts the most likely class of each time step to text: merges repeats, drops blanks.

        Args:
            classes: Class index per time step, `[steps]`.

        Raises:
            ModelError: A class has no token.

        Source: transformers' Wav2Vec2CTCTokenizer.
        """
        ids = np.asarray(classes, np.int64)
        changed = np.ones(len(ids), bool)
        changed[1:] = ids[1:] != ids[:-1]
        class_ids = ids[changed & (ids != self.blank)]
        if class_ids.size and not 0 <= class_ids.min() <= class_ids.max() < len(self.tokens):
            raise ModelError(
                f"The model chose class {class_ids.max()}, and vocab.json has {len(self.tokens)} "
                "tokens; they belong to different models."
            )
        tokens = (self.tokens[i] for i in class_ids)
        text = "".join(" " if t == self.delimiter else t for t in tokens).strip()
        return text.lower() if self.lower else text


class CtcSpeech:
    """A CTC model on a device: wav2vec2, HuBERT, WavLM and the like.

    Inputs run one at a time: padding would change the results of models without an attention mask.

    Attributes:
        model: Model from samples to scores `[batch, steps, classes]`.
        features: Feature extractor of the model's inputs.
        vocabulary: Tokens of the model's classes.

    Args:
        folder: A Hugging Face folder with the model as ONNX.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        strict: Whether a node without a fitting kernel is an error; None reads CLRT_STRICT.
        cache_dir: Folder for compiled programs; None for the default.

    Raises:
        ModelError: A file is missing or damaged, or no output is `[batch, steps, classes]`.
        UnsupportedError: The model needs an op or an option that clrt does not support.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: str | int | DeviceInfo | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        self.vocabulary = CtcVocabulary.read(folder)
        self.features = Features.from_config(
            folder, device=device, strict=strict, cache_dir=cache_dir
        )
        self.model: Model = load(folder, device=device, strict=strict, cache_dir=cache_dir)
        self._wanted = [s.name for s in self.model.inputs]
        self._output = next((s.name for s in self.model.outputs if _is_scores(s.shape)), "")
        if not self._output:
            raise ModelError(
                f"'{folder}' has no output [batch, steps, classes]; export the model for "
                "automatic-speech-recognition."
            )

    def check(self, options: SpeechOptions) -> None:
        """Checks that a CTC model supports the options: no language, no prompt, no translation.

        Raises:
            InputError: An option is not supported.
        """
        asked = {"language": options.language, "prompt": options.prompt}
        for name, value in asked.items():
            if value is not None:
                raise InputError(
                    f"{name} is {value!r}; CTC models do not support it, Whisper does."
                )
        if options.task != "transcribe":
            raise InputError(f"task is {options.task!r}; a CTC model can only transcribe.")

    def transcribe(
        self, sounds: Sequence[Sound], sampling_rate: int | None, options: SpeechOptions
    ) -> list[Transcript]:
        """Transcribes audio inputs, each to one segment, or to none if no text is recognized.

        Args:
            sounds: Audio inputs: paths, bytes of files, or arrays.
            sampling_rate: Sampling rate of arrays, in Hz; None for the model's.
            options: Ignored: `check` raises an error for options that CTC models do not support.

        Raises:
            InputError: An input is damaged, empty, too short for the model, or of a wrong type.
        """
        return [self._transcript(sound, sampling_rate) for sound in sounds]

    def stream(
        self, sound: Sound, sampling_rate: int | None, options: SpeechOptions
    ) -> TranscriptStream:
        """Transcribes an audio input at once, to a stream of one segment, or of none without text.

        Args:
            sound: Audio input: a path, the bytes of a file, or an array.
            sampling_rate: Sampling rate of an array, in Hz; None for the model's.
            options: Ignored: `check` raises an error for options that CTC models do not support.
        """
        transcript = self._transcript(sound, sampling_rate)
        return TranscriptStream(transcript.duration, iter(transcript.segments), str, Event())

    def close(self) -> None:
        """Frees the device memory."""
        self.model.close()
        self.features.close()

    def _transcript(self, sound: Sound, sampling_rate: int | None) -> Transcript:
        """Runs the model on one sound and returns its transcript, of at most one segment."""
        inputs = self.features(sound, sampling_rate)
        (samples,) = (inputs[n] for n in inputs if n != "attention_mask")
        inputs.setdefault("attention_mask", np.ones(samples.shape, np.int64))
        feeds = {name: inputs[name] for name in self._wanted if name in inputs}
        try:
            scores = self.model.run(feeds, [self._output])[self._output]
        except ShapeError as error:
            raise ShapeError(
                f"A sound of {counted(samples.shape[1], 'sample')} is unsuitable for the model, "
                f"which may need a longer one: {error}"
            ) from error
        text = self.vocabulary.decode(scores[0].argmax(axis=-1))
        seconds = samples.shape[1] / self.features.sampling_rate
        segments = (TranscriptSegment(0.0, seconds, text),) if text else ()
        return Transcript(text, segments, "", seconds)


def _is_scores(shape: Sequence[int | str] | None) -> bool:
    return shape is not None and len(shape) == 3


def _token_text(value: object, default: str) -> str:
    """Returns the text of a token in a tokenizer_config.json.

    Args:
        value: The text, or an object with the text as `content`.
        default: Text to return if the value is neither.
    """
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) and content else default
