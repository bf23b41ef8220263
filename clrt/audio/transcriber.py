"""Speech to text by models such as wav2vec2, which give a letter for each moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clrt.audio.config import read_object
from clrt.audio.features import Features
from clrt.audio.streams import Sound, is_batch, sounds_of
from clrt.errors import ModelError, ShapeError, counted
from clrt.files import expanded
from clrt.model import Model, load
from clrt.runtime.devices import DeviceInfo


@dataclass(frozen=True)
class CtcVocabulary:
    """The tokens of a model's classes.

    Attributes:
        tokens: By class.
        blank: The class of the blank, which parts equal letters.
        delimiter: The token between words.
        lower: Whether text is lower case.
    """

    tokens: Sequence[str]
    blank: int
    delimiter: str = "|"
    lower: bool = False

    @classmethod
    def read(cls, folder: str | Path) -> CtcVocabulary:
        """The vocabulary of a Hugging Face folder: vocab.json and tokenizer_config.json.

        Raises:
            ModelError: A file is missing or damaged.
        """
        path = expanded(folder)
        vocabulary = read_object(path / "vocab.json")
        config = path / "tokenizer_config.json"
        options = read_object(config) if config.is_file() else {}
        pad = _text(options.get("pad_token"), "[PAD]" if "[PAD]" in vocabulary else "<pad>")
        classes = list(vocabulary.values())
        if sorted(c if type(c) is int else -1 for c in classes) != list(range(len(classes))):
            raise ModelError(
                f"'{path / 'vocab.json'}' must give each token a number of its own, from 0; "
                "download the model's own file."
            )
        if pad not in vocabulary:
            raise ModelError(
                f"'{path / 'vocab.json'}' lacks the padding token {pad!r}, which is CTC's blank."
            )
        return cls(
            sorted(vocabulary, key=vocabulary.__getitem__),
            vocabulary[pad],
            _text(options.get("word_delimiter_token"), "|"),
            options.get("do_lower_case") is True,
        )

    def decode(self, classes: Sequence[int] | np.ndarray[Any, Any]) -> str:
        """The text of the best class at each moment: repeats are one, blanks are none.

        Args:
            classes: [moments].

        Raises:
            ModelError: A class has no token.

        Source: transformers' Wav2Vec2CTCTokenizer.
        """
        ids = np.asarray(classes, np.int64)
        changed = np.ones(len(ids), bool)
        changed[1:] = ids[1:] != ids[:-1]
        kept = ids[changed & (ids != self.blank)]
        if kept.size and not 0 <= kept.min() <= kept.max() < len(self.tokens):
            raise ModelError(
                f"The model chose class {kept.max()}, and vocab.json has {len(self.tokens)} "
                "tokens; they are of two models."
            )
        tokens = (self.tokens[i] for i in kept)
        text = "".join(" " if t == self.delimiter else t for t in tokens).strip()
        return text.lower() if self.lower else text


class Transcriber:
    """Speech to text by a CTC model: wav2vec2, HuBERT, WavLM and the like.

    Sounds run one by one: padding would change what models without a mask hear.

    Args:
        folder: A Hugging Face folder with the model as ONNX, `preprocessor_config.json` and
            `vocab.json`.
        device: As in `clrt.load`.
        strict: As in `clrt.load`.
        cache_dir: As in `clrt.load`.

    Attributes:
        model: The model: samples in, scores [batch, moments, classes] out.
        features: What makes its inputs.
        vocabulary: Its tokens.

    Raises:
        ModelError: A file is missing or damaged, or the model is of another form.
        UnsupportedError: The model has an op, or asks for an option, that clrt lacks.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str | int | DeviceInfo | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        path = expanded(folder)
        self.vocabulary = CtcVocabulary.read(path)
        self.features = Features.from_config(
            path, device=device, strict=strict, cache_dir=cache_dir
        )
        self.model: Model = load(path, device=device, strict=strict, cache_dir=cache_dir)
        self._wanted = [s.name for s in self.model.inputs]
        self._output = next((s.name for s in self.model.outputs if _is_scores(s.shape)), "")
        if not self._output:
            raise ModelError(
                f"'{folder}' has no output [batch, moments, classes]; export the model for "
                "automatic-speech-recognition."
            )

    def __call__(self, audio: Sound, sampling_rate: int | None = None) -> str | list[str]:
        """What is said in a sound; a list for a list of sounds.

        Args:
            audio: As for `Features`.
            sampling_rate: As for `Features`.

        Raises:
            InputError: A sound is damaged, empty, too short for the model, or of another kind.
        """
        texts = [self._text(s, sampling_rate) for s in sounds_of(audio)]
        return texts if is_batch(audio) else texts[0]

    def close(self) -> None:
        """Frees the device memory."""
        self.model.close()
        self.features.close()

    def __enter__(self) -> Transcriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _text(self, sound: Sound, sampling_rate: int | None) -> str:
        made = self.features(sound, sampling_rate)
        (samples,) = (made[n] for n in made if n != "attention_mask")
        made.setdefault("attention_mask", np.ones(samples.shape, np.int64))
        feeds = {name: made[name] for name in self._wanted if name in made}
        try:
            scores = self.model.run(feeds, [self._output])[self._output]
        except ShapeError as error:
            raise ShapeError(
                f"A sound of {counted(samples.shape[1], 'sample')} does not fit the model, which "
                f"may need a longer one: {error}"
            ) from error
        return self.vocabulary.decode(scores[0].argmax(axis=-1))


def _is_scores(shape: Sequence[int | str] | None) -> bool:
    return shape is not None and len(shape) == 3


def _text(given: object, default: str) -> str:
    """A token as configurations write it: its text, or an object that has it."""
    found = given.get("content") if isinstance(given, Mapping) else given
    return found if isinstance(found, str) and found else default
