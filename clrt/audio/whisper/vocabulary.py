"""The tokens of a Whisper model: texts, languages, tasks and times."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clrt.audio.whisper.languages import LANGUAGES, OTHER_NAMES
from clrt.audio.whisper.logits_rules import WhisperLogitsProcessor
from clrt.errors import InputError, ModelError, UnsupportedError, explain_missing_extra
from clrt.formats.safetensors import damaged
from clrt.generation.model_reader import read_tokenizer
from clrt.generation.options import unfollowed_keys
from clrt.models.huggingface.model_files import read_optional

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from clrt.models.tokenizers.checked_tokenizer import CheckedTokenizer

TASKS = ("transcribe", "translate")
# Vocabularies of this size and more have a language more than those that know English alone.
_LEAST_MULTILINGUAL = 51_865
# Options that windows of sound follow, or whose limits they keep to in any case.
_FOLLOWED = ("suppress_tokens", "begin_suppress_tokens", "max_length", "max_new_tokens")


@dataclass(frozen=True, eq=False)
class WhisperVocabulary:
    """The tokens of a model, and how it likes them to be used.

    Attributes:
        tokenizer: Of texts.
        size: Tokens that logits are for.
        start: Begins a text.
        end: Ends it. Tokens below it are text.
        previous: What follows was said before; None where the model has no such token.
        no_timestamps: The text has no times. Those behind it are times, 0.02 s apart.
        languages: By code; empty for a model that knows English alone.
        tasks: By name; as `languages`.
        suppressed: Tokens that never come.
        first_suppressed: Those that do not come first.
        most_first_time: How many steps of time there may be before the first text; None for any.
    """

    tokenizer: Tokenizer
    size: int
    start: int
    end: int
    previous: int | None
    no_timestamps: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    suppressed: Sequence[int] = ()
    first_suppressed: Sequence[int] = ()
    most_first_time: int | None = None

    @classmethod
    def read(cls, folder: Path, size: int) -> WhisperVocabulary:
        """The vocabulary of a Hugging Face folder: tokenizer.json and generation_config.json.

        Args:
            size: Tokens that logits are for.

        Raises:
            ModelError: A file is missing or damaged, or a token is missing.
            UnsupportedError: The package tokenizers is not installed.
        """
        # Without such a file, and in old folders, config.json has these keys.
        file = folder / "generation_config.json"
        values = {**read_optional(folder / "config.json"), **read_optional(file)}
        return cls._of(file, read_tokenizer(folder / "tokenizer.json"), values, size)

    @classmethod
    def of(
        cls, source: Path, tokenizer: object, values: Mapping[str, Any], size: int
    ) -> WhisperVocabulary:
        """The vocabulary of what a compiled file has.

        Args:
            source: The file, for messages.
            tokenizer: The text of a tokenizer.json.
            values: Those of a generation_config.json.
            size: Tokens that logits are for.

        Raises:
            ModelError: The file is damaged.
            UnsupportedError: The package tokenizers is not installed.
        """
        with explain_missing_extra("Speech to text by Whisper"):
            from clrt.models.tokenizers.checked_tokenizer import load_tokenizer
        try:
            made = load_tokenizer(str(tokenizer), source).library
        except ModelError as error:
            raise damaged(source, f"its tokenizer cannot be read, {error}") from error
        return cls._of(source, made, values, size)

    @classmethod
    def _of(
        cls, source: Path, tokenizer: Tokenizer, values: Mapping[str, Any], size: int
    ) -> WhisperVocabulary:
        if unfollowed := unfollowed_keys(values, _FOLLOWED):
            name = unfollowed[0]
            raise UnsupportedError(
                f"'{source}' asks for {name} {str(values[name])[:60]}, which clrt's Whisper does "
                "not follow; take the key out of the file."
            )
        own = _Own(source, values, tokenizer, size)
        no_timestamps = own.token("no_timestamps_token_id", "<|notimestamps|>")
        codes = own.tokens("lang_to_id", [f"<|{code}|>" for code in LANGUAGES])
        tasks = own.tokens("task_to_id", [f"<|{task}|>" for task in TASKS])
        multilingual = values.get("is_multilingual", size >= _LEAST_MULTILINGUAL)
        if multilingual and (not codes or TASKS[0] not in tasks):
            raise ModelError(
                f"'{source}' has no tokens of languages, or none of the task {TASKS[0]}; download "
                "the model's own file."
            )
        return cls(
            tokenizer=tokenizer,
            size=size,
            start=own.token("decoder_start_token_id", "<|startoftranscript|>"),
            end=own.token("eos_token_id", "<|endoftext|>"),
            previous=own.found("prev_sot_token_id", "<|startofprev|>"),
            no_timestamps=no_timestamps,
            languages=codes if multilingual else {},
            tasks=tasks if multilingual else {},
            suppressed=own.numbers("suppress_tokens"),
            first_suppressed=own.numbers("begin_suppress_tokens"),
            most_first_time=own.count("max_initial_timestamp_index"),
        )

    def values(self) -> dict[str, Any]:
        """What a generation_config.json says of it."""
        return {
            "is_multilingual": bool(self.languages),
            "decoder_start_token_id": self.start,
            "eos_token_id": self.end,
            "prev_sot_token_id": self.previous,
            "no_timestamps_token_id": self.no_timestamps,
            "lang_to_id": {f"<|{code}|>": token for code, token in self.languages.items()},
            "task_to_id": {f"<|{task}|>": token for task, token in self.tasks.items()},
            "suppress_tokens": [*self.suppressed],
            "begin_suppress_tokens": [*self.first_suppressed],
            "max_initial_timestamp_index": self.most_first_time,
        }

    @property
    def first_time(self) -> int:
        """The token of the time 0."""
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """Says that nobody speaks."""
        return self.no_timestamps - 1

    @cached_property
    def _checked(self) -> CheckedTokenizer:
        from clrt.models.tokenizers.checked_tokenizer import CheckedTokenizer

        return CheckedTokenizer(self.tokenizer)

    @cached_property
    def _codes(self) -> Mapping[int, str]:
        return {token: code for code, token in self.languages.items()}

    def prompt(self, language: str, task: str, timestamps: bool) -> list[int]:
        """The tokens that a text begins with.

        Args:
            language: As `language_of` gives it.
        """
        made = [self.start]
        if self.languages:
            made += [self.languages[language], self.tasks[task]]
        return made if timestamps else [*made, self.no_timestamps]

    def rules(self, timestamps: bool) -> WhisperLogitsProcessor:
        """What may follow the prompt."""
        return WhisperLogitsProcessor(
            np.array(self.suppressed, np.int64),
            np.array(self.first_suppressed, np.int64),
            self.end,
            self.first_time,
            timestamps,
            self.most_first_time,
        )

    def language_of(self, name: str | None) -> str | None:
        """The code of a language by its code, its token or its English name; None for None.

        Raises:
            InputError: The model does not know it.
        """
        if name is None:
            return None
        if not isinstance(name, str):
            raise InputError(f"language is {name!r}; it is a code such as 'en', or a name.")
        if not self.languages:
            if name.lower().strip("<|>") in ("en", "english"):
                return "en"
            raise InputError(f"The model knows English alone, and language is {name!r}.")
        wanted = name.lower().strip("<|>")
        names = {full: code for code, full in LANGUAGES.items()} | OTHER_NAMES
        code = names.get(wanted, wanted)
        if code in self.languages:
            return code
        known = [*self.languages, *(n for n, c in names.items() if c in self.languages)]
        near = difflib.get_close_matches(wanted, known, 1, 0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(self.languages)}."
        raise InputError(f"The model does not know the language {name!r}; {hint}")

    def check_task(self, task: str) -> None:
        """Whether the model has a task.

        Raises:
            InputError: It has not.
        """
        if task not in TASKS:
            raise InputError(f"task is {task!r}; it is one of {', '.join(TASKS)}.")
        if task != TASKS[0] and not self.languages:
            raise InputError(f"The model knows English alone, and cannot {task}.")
        if self.languages and task not in self.tasks:
            raise InputError(f"The model cannot {task}: it has no token for that.")

    def detected(self, logits: np.ndarray[Any, Any]) -> str:
        """The code of the likeliest language, by the logits behind `start`; "en" of a model that
        knows English alone.
        """
        if not self.languages:
            return "en"
        tokens = list(self.languages.values())
        return self._codes[tokens[int(np.argmax(logits[tokens]))]]

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt's text."""
        found = self._checked.encode(f" {text.strip()}", add_special_tokens=False).ids
        return [t for t in found if t < self.end]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without times and the like."""
        text = [t for t in tokens if t < self.end]
        return self._checked.decode(text, skip_special_tokens=False)


class _Own:
    """What generation_config.json says, checked; else what tokenizer.json has.

    Args:
        file: Where the values are from, for messages.
        values: What it says.
        size: Tokens that logits are for.
    """

    def __init__(
        self, file: Path, values: Mapping[str, Any], tokenizer: Tokenizer, size: int
    ) -> None:
        self._file, self._values = file, values
        self._tokenizer, self._size = tokenizer, size

    def found(self, key: str, text: str) -> int | None:
        """A token; None where there is none."""
        value = self._values.get(key)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None:
            value = self._tokenizer.token_to_id(text)
        return None if value is None else self._checked(key, value)

    def token(self, key: str, text: str) -> int:
        """A token that must be there.

        Raises:
            ModelError: It is not.
        """
        found = self.found(key, text)
        if found is None:
            raise ModelError(
                f"'{self._file}' has no {key}, and tokenizer.json no {text}; download the model's "
                "own files."
            )
        return found

    def tokens(self, key: str, texts: Sequence[str]) -> dict[str, int]:
        """Tokens by what stands between `<|` and `|>`."""
        given = self._values.get(key)
        if given is None:
            ids = {text: self._tokenizer.token_to_id(text) for text in texts}
            given = {text: token for text, token in ids.items() if token is not None}
        if not isinstance(given, dict):
            raise ModelError(f"'{self._file}' must give {key} as an object.")
        return {str(t).strip("<|>"): self._checked(key, token) for t, token in given.items()}

    def numbers(self, key: str) -> list[int]:
        """A list of tokens; those that logits are not for are left out."""
        given = self._values.get(key)
        if given is None:
            return []
        if not isinstance(given, list) or any(type(t) is not int for t in given):
            raise ModelError(f"'{self._file}' must give {key} as a list of tokens.")
        return [t for t in given if 0 <= t < self._size]

    def count(self, key: str) -> int | None:
        """A number of at least 0; None where there is none."""
        value = self._values.get(key)
        if value is not None and (type(value) is not int or value < 0):
            raise ModelError(f"'{self._file}' must give {key} as a number of at least 0.")
        return value

    def _checked(self, key: str, value: object) -> int:
        if type(value) is not int or not 0 <= value < self._size:
            raise ModelError(
                f"'{self._file}' gives {key} as {value!r}; expected tokens below {self._size}."
            )
        return value
