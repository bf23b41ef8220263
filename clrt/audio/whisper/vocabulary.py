"""Tokens of a Whisper model: text, languages, tasks and timestamps."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
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
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from clrt.models.tokenizers.checked_tokenizer import CheckedTokenizer

TASKS = ("transcribe", "translate")
# Minimum vocabulary size of multilingual models; English-only ones have one token less.
_MIN_MULTILINGUAL_TOKENS = 51_865
# Keys of generation_config.json that cause no warning: transcription applies the suppressed tokens,
# and its own length limits are within the file's.
_FOLLOWED = ("suppress_tokens", "begin_suppress_tokens", "max_length", "max_new_tokens")


@dataclass(frozen=True, eq=False)
class WhisperVocabulary:
    """Tokens of a Whisper model, and rules for their use.

    Attributes:
        tokenizer: Tokenizer of text.
        size: Number of logits.
        start: Token at the start of each window's text.
        end: Token at the end of each window's text; lower tokens are text.
        previous: Token before the text of earlier windows; None if the model has no such token.
        no_timestamps: Token that asks for text without timestamps. Higher tokens are timestamps,
            0.02 s apart.
        languages: Language tokens by code; empty for English-only models.
        tasks: Task tokens by name; empty for English-only models.
        suppressed: Tokens that are never allowed.
        first_suppressed: Tokens that are not allowed as the first token of a window.
        most_first_time: Maximum of a window's first timestamp, in steps of 0.02 s; None for no
            limit.
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
        """Reads the vocabulary from tokenizer.json and generation_config.json of a folder.

        config.json supplies keys that generation_config.json lacks.

        Args:
            folder: Hugging Face folder of the model.
            size: Number of logits.

        Raises:
            ModelError: A file is missing or damaged, or a token is missing.
            UnsupportedError: The package tokenizers is not installed, or an option is not
                supported.
        """
        # config.json has these keys if generation_config.json is missing or old.
        file = folder / "generation_config.json"
        values = {**read_optional(folder / "config.json"), **read_optional(file)}
        return cls._of(file, read_tokenizer(folder / "tokenizer.json"), values, size)

    @classmethod
    def of(
        cls, source: Path, tokenizer: object, values: Mapping[str, Any], size: int
    ) -> WhisperVocabulary:
        """Creates the vocabulary from the contents of a compiled file.

        Args:
            source: Path of the file, for messages.
            tokenizer: Text of a tokenizer.json.
            values: Keys of a generation_config.json.
            size: Number of logits.

        Raises:
            ModelError: The file is damaged.
            UnsupportedError: The package tokenizers is not installed, or an option is not
                supported.
        """
        with explain_missing_extra("Speech to text by Whisper"):
            from clrt.models.tokenizers.checked_tokenizer import load_tokenizer
        try:
            library = load_tokenizer(str(tokenizer), source).library
        except ModelError as error:
            raise damaged(source, f"its tokenizer cannot be read, {error}") from error
        return cls._of(source, library, values, size)

    @classmethod
    def _of(
        cls, source: Path, tokenizer: Tokenizer, values: Mapping[str, Any], size: int
    ) -> WhisperVocabulary:
        """Returns the vocabulary of a tokenizer and the values of generation_config.json."""
        if unfollowed := unfollowed_keys(values, _FOLLOWED):
            name = unfollowed[0]
            raise UnsupportedError(
                f"'{source}' asks for {name} {str(values[name])[:60]}, which clrt's Whisper does "
                "not support; take the key out of the file."
            )
        ids = _TokenIds(source, values, tokenizer, size)
        no_timestamps = ids.token("no_timestamps_token_id", "<|notimestamps|>")
        codes = ids.tokens("lang_to_id", [f"<|{code}|>" for code in LANGUAGES])
        tasks = ids.tokens("task_to_id", [f"<|{task}|>" for task in TASKS])
        multilingual = values.get("is_multilingual", size >= _MIN_MULTILINGUAL_TOKENS)
        if multilingual and (not codes or TASKS[0] not in tasks):
            raise ModelError(
                f"'{source}' has no language tokens, or none for the task {TASKS[0]}; download "
                "the model's own file."
            )
        return cls(
            tokenizer=tokenizer,
            size=size,
            start=ids.token("decoder_start_token_id", "<|startoftranscript|>"),
            end=ids.token("eos_token_id", "<|endoftext|>"),
            previous=ids.found("prev_sot_token_id", "<|startofprev|>"),
            no_timestamps=no_timestamps,
            languages=codes if multilingual else {},
            tasks=tasks if multilingual else {},
            suppressed=ids.numbers("suppress_tokens"),
            first_suppressed=ids.numbers("begin_suppress_tokens"),
            most_first_time=ids.count("max_initial_timestamp_index"),
        )

    def values(self) -> dict[str, Any]:
        """Returns the vocabulary as JSON values, by keys of generation_config.json."""
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
        """Timestamp token of the window's start, 0 s."""
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """Token whose probability right after `start` is the probability of no speech."""
        return self.no_timestamps - 1

    @cached_property
    def _checked(self) -> CheckedTokenizer:
        from clrt.models.tokenizers.checked_tokenizer import CheckedTokenizer

        return CheckedTokenizer(self.tokenizer)

    @cached_property
    def _codes(self) -> Mapping[int, str]:
        return {token: code for code, token in self.languages.items()}

    def prompt(self, language: str, task: str, timestamps: bool) -> list[int]:
        """Returns the tokens that start a window's text: start, language, task and timestamps.

        Args:
            language: Language code, as returned by `language_of`; ignored for English-only models.
            task: Task name; ignored for English-only models.
            timestamps: Whether timestamps are generated.
        """
        tokens = [self.start]
        if self.languages:
            tokens += [self.languages[language], self.tasks[task]]
        return tokens if timestamps else [*tokens, self.no_timestamps]

    def rules(self, timestamps: bool) -> WhisperLogitsProcessor:
        """Returns the rules for the tokens that may follow the prompt.

        Args:
            timestamps: Whether timestamps are generated.
        """
        return WhisperLogitsProcessor(
            np.array(self.suppressed, np.int64),
            np.array(self.first_suppressed, np.int64),
            self.end,
            self.first_time,
            timestamps,
            self.most_first_time,
        )

    def language_of(self, name: str | None) -> str | None:
        """Returns the code of a language.

        Args:
            name: Code, token or English name of the language; None to detect it.

        Returns:
            Language code; None if `name` is None.

        Raises:
            InputError: The model does not support the language.
        """
        if name is None:
            return None
        if not isinstance(name, str):
            raise InputError(f"language is {name!r}; expected a code such as 'en', or a name.")
        if not self.languages:
            if name.lower().strip("<|>") in ("en", "english"):
                return "en"
            raise InputError(f"The model supports only English, but language is {name!r}.")
        wanted = name.lower().strip("<|>")
        names = {full: code for code, full in LANGUAGES.items()} | OTHER_NAMES
        code = names.get(wanted, wanted)
        if code in self.languages:
            return code
        known = [*self.languages, *(n for n, c in names.items() if c in self.languages)]
        near = difflib.get_close_matches(wanted, known, 1, 0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(self.languages)}."
        raise InputError(f"The model does not support the language {name!r}; {hint}")

    def check_task(self, task: str) -> None:
        """Checks that the model supports a task.

        Raises:
            InputError: The model does not support the task, or there is no such task.
        """
        if task not in TASKS:
            raise InputError(f"task is {task!r}; expected one of {', '.join(TASKS)}.")
        if task != TASKS[0] and not self.languages:
            raise InputError(f"The model supports only English, and cannot {task}.")
        if self.languages and task not in self.tasks:
            raise InputError(f"The model cannot {task}: it has no token for that.")

    def detected(self, logits: np.ndarray[Any, Any]) -> str:
        """Returns the code of the most likely language; "en" for an English-only model.

        Args:
            logits: Logits that follow the token `start`, `[vocabulary]`.
        """
        if not self.languages:
            return "en"
        tokens = list(self.languages.values())
        return self._codes[tokens[int(np.argmax(logits[tokens]))]]

    def encode(self, text: str) -> list[int]:
        """Tokenizes text that precedes a window, without special tokens."""
        tokens = self._checked.encode(f" {text.strip()}", add_special_tokens=False).ids
        return [t for t in tokens if t < self.end]

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without timestamps and special tokens."""
        text = [t for t in tokens if t < self.end]
        return self._checked.decode(text, skip_special_tokens=False)


class _TokenIds:
    """Reads and checks token ids: from generation_config.json, else from tokenizer.json.

    Args:
        file: Path of generation_config.json, for messages.
        values: Contents of that file.
        tokenizer: The tokenizer.
        size: Number of logits.

    Raises:
        ModelError: A method found an invalid value.
    """

    def __init__(
        self, file: Path, values: Mapping[str, Any], tokenizer: Tokenizer, size: int
    ) -> None:
        self._file, self._values = file, values
        self._tokenizer, self._size = tokenizer, size

    def found(self, key: str, text: str) -> int | None:
        """Returns a token id from generation_config.json, or tokenizer.json; None if both lack it.

        Args:
            key: Key of generation_config.json.
            text: Text of the token in tokenizer.json.
        """
        value = self._values.get(key)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None:
            value = self._tokenizer.token_to_id(text)
        return None if value is None else self._checked(key, value)

    def token(self, key: str, text: str) -> int:
        """Returns the id of a required token from generation_config.json, or tokenizer.json.

        Args:
            key: Key of generation_config.json.
            text: Text of the token in tokenizer.json.

        Raises:
            ModelError: Neither file has the token.
        """
        token = self.found(key, text)
        if token is None:
            raise ModelError(
                f"'{self._file}' has no {key}, and tokenizer.json no {text}; download the model's "
                "own files."
            )
        return token

    def tokens(self, key: str, texts: Sequence[str]) -> dict[str, int]:
        """Returns the ids of several tokens by their text without `<|` and `|>`.

        Args:
            key: Key of generation_config.json, which maps texts to ids.
            texts: Texts of tokens to look up in tokenizer.json if the key is missing; texts that it
                lacks are skipped.
        """
        by_text = self._values.get(key)
        if by_text is None:
            ids = {text: self._tokenizer.token_to_id(text) for text in texts}
            by_text = {text: token for text, token in ids.items() if token is not None}
        if not isinstance(by_text, dict):
            raise ModelError(f"'{self._file}' must give {key} as an object.")
        return {str(t).strip("<|>"): self._checked(key, token) for t, token in by_text.items()}

    def numbers(self, key: str) -> list[int]:
        """Returns the token ids listed under `key` of generation_config.json; [] if it is missing.

        Ids without logits are left out.
        """
        tokens = self._values.get(key)
        if tokens is None:
            return []
        if not isinstance(tokens, list) or any(type(t) is not int for t in tokens):
            raise ModelError(f"'{self._file}' must give {key} as a list of tokens.")
        return [t for t in tokens if 0 <= t < self._size]

    def count(self, key: str) -> int | None:
        """Returns the integer under `key` of generation_config.json, 0 or more; None if missing."""
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
