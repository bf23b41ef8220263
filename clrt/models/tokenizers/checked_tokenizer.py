"""Tokenizers of the tokenizers library, from untrusted JSON.

The library applies a tokenizer.json without limits: tables that point out of themselves abort the
process, replacements that double a text exhaust memory, and patterns may take hours. So the JSON is
checked before the library reads it, errors and panics of the library become errors of clrt, and
calls that may be slow run in a thread with a time limit.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Encoding, Tokenizer

from clrt.errors import ClrtError, InputError, ModelError
from clrt.formats.safetensors import damaged
from clrt.models.tokenizers.charsmap import check_charsmap
from clrt.models.tokenizers.gguf_splits import SPLIT_RULES
from clrt.util.dedicated_thread import call_in_thread

T = TypeVar("T")

# Maximum factor by which all replacements together lengthen a text; published models stay below 20.
_MAX_GROWTH = 1 << 12
# Maximum characters of a replacement, and of a text prepended to the input.
_MAX_CONTENT = 1 << 12
# Normalizer -> maximum characters that it makes of one: U+FDFA becomes 18 in NFKC.
_NORMAL_FORMS = {"NFD": 4, "NFC": 3, "NFKD": 18, "NFKC": 18, "ByteLevel": 4, "BertNormalizer": 12}
# Limits of a tokenizer file: number of steps, number of added tokens, and nesting depth.
_MAX_STEPS, _MAX_ADDED, _MAX_DEPTH = 2048, 4096, 100
# Maximum characters that a decoder's Strip removes, and maximum characters of a WordPiece word. The
# time grows with their square.
_MAX_STRIPPED, _MAX_WORD = 1024, 1 << 12
_MAX_PATTERN = 1 << 14
# Maximum characters of all added tokens after normalization, and of a single one if `is_slow`.
_MAX_NORMALIZED, _MAX_TOKEN = 1 << 26, 256
_ID_LIMIT = 1 << 30
# Time limit of a call in seconds: fixed part, and part per character of text.
_PATIENCE_S, _PATIENCE_S_PER_CHAR = 6.0, 2e-5
_COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
# Patterns of published tokenizers, whose matching time is linear in the text.
_KNOWN = {p for rule in SPLIT_RULES.values() for p in rule.patterns} | {
    *(" {2,}", r"\s+", " +", "^ +| +$", "^ +", " +$", "[^\n]+|\n+", "[0-9]", r"\d", r"\p{N}"),
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",  # CLIP
}
# Syntax that Oniguruma, the library's regex engine, reads differently from Python: sets in sets,
# and a{2}?, which also matches "". Searched for after escapes and plain sets are replaced.
_PLAIN_SETS = re.compile(r"\\.|\[\^?(?:\\.|[^\]\[\\&])+\]", re.DOTALL)
_FOREIGN = re.compile(r"[\[\]]|\}\?")


class CheckedTokenizer:
    """A tokenizer that raises clrt's errors and bounds the time of slow calls.

    Attributes:
        library: The tokenizer of the tokenizers library.
        is_slow: Whether calls may be slow, and so run in a thread with a time limit.

    Args:
        library: A tokenizer from `load_tokenizer`, or built by clrt.
    """

    def __init__(self, library: Tokenizer, is_slow: bool = True) -> None:
        self.library, self.is_slow = library, is_slow

    def encode_batch(
        self, texts: Sequence[Any], add_special_tokens: bool = True
    ) -> Sequence[Encoding]:
        """Encodes a batch of texts; the encodings have no character offsets.

        Args:
            texts: Strings, or pairs of strings.
            add_special_tokens: Whether to add tokens such as BOS and EOS.

        Raises:
            InputError: The tokenizer cannot encode a text, or exceeds the time limit.
            TypeError, UnicodeError: An element is not a string, or not valid Unicode.
        """
        return self._call(
            lambda: self.library.encode_batch_fast(texts, add_special_tokens=add_special_tokens),
            sum(map(_num_chars, texts)) if self.is_slow else 0,
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoding:
        """Encodes a text, with character offsets.

        Args:
            text: The text.
            add_special_tokens: Whether to add tokens such as BOS and EOS.

        Raises:
            InputError: The tokenizer cannot encode the text, or exceeds the time limit.
            TypeError, UnicodeError: `text` is not a string, or not valid Unicode.
        """
        return self._call(
            lambda: self.library.encode_batch([text], add_special_tokens=add_special_tokens)[0],
            len(text),
        )

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decodes token ids to text.

        Args:
            tokens: Token ids.
            skip_special_tokens: Whether to leave out special tokens such as BOS.

        Raises:
            InputError: The tokenizer cannot decode the ids, or exceeds the time limit.
        """
        return self._call(
            lambda: str(self.library.decode(tokens, skip_special_tokens=skip_special_tokens)),
            100 * len(tokens),
        )

    def _call(self, call: Callable[[], T], chars: int) -> T:
        """Runs a call of the library on `chars` characters, with a time limit if it may be slow."""
        with translated(InputError, "The tokenizer cannot take the text"):
            return within(call, chars) if self.is_slow else call()


def load_tokenizer(text: str, file: Path) -> CheckedTokenizer:
    """Builds the tokenizer that a tokenizer.json describes, after checking the JSON.

    Args:
        text: Content of the tokenizer.json.
        file: Its path, for messages.

    Raises:
        ModelError: The JSON does not describe a tokenizer, or exceeds a limit.
    """
    is_slow = check_tokenizer(text, file)
    what = f"'{file}' is not a tokenizer that the tokenizers library reads"
    with translated(ModelError, what, "download the model's own file"):
        library = Tokenizer.from_str(text)
        # pad to the longest text, never to a fixed size
        if (padding := library.padding) is not None:
            options = ("direction", "pad_id", "pad_type_id", "pad_token")
            library.enable_padding(**{name: padding[name] for name in options})
        return CheckedTokenizer(library, is_slow)


def check_tokenizer(text: str, file: Path) -> bool:
    """Checks the JSON of a tokenizer against limits of size and work.

    Args:
        text: Content of the tokenizer.json.
        file: Its path, for messages.

    Returns:
        Whether the tokenizer may be slow: it has patterns that clrt does not know, or other steps
        whose work may grow faster than the text.

    Raises:
        ModelError: The JSON does not describe a tokenizer, or exceeds a limit.
    """
    what = f"'{file}' is not a tokenizer that the tokenizers library reads"
    try:
        content = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{what} ({error}); download the model's own file.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{what} (it is not a JSON object); download the model's own file.")
    check = _Check(file)
    # The normalizer comes last, because `added` reads its growth.
    for name in reversed(_COMPONENTS):
        check.growth = 1.0
        check.component(content.get(name), name, 0)
    check.added(content.get("added_tokens"))
    check.model(content.get("model"))
    return check.is_slow


def within(call: Callable[[], T], chars: int) -> T:
    """Calls a function of the tokenizers library in a thread, with a time limit.

    Args:
        call: The function; it continues in its thread if the limit is exceeded.
        chars: Length of the text in characters; the time limit grows with it.

    Raises:
        InputError: The call exceeds the time limit.
    """
    limit_s = _PATIENCE_S + _PATIENCE_S_PER_CHAR * chars
    try:
        return call_in_thread(call, limit_s)
    except TimeoutError as error:
        raise InputError(
            f"The tokenizer takes more than {limit_s:.0f} s for a text of {chars} characters; use "
            "the model's own tokenizer.json, or shorter texts."
        ) from error


@contextmanager
def translated(
    kind: type[ClrtError], what: str, remedy: str = "use the model's own tokenizer.json"
) -> Iterator[None]:
    """Context manager that turns errors and panics of the tokenizers library into `kind`.

    Args:
        kind: Class of the error to raise.
        what: Start of the message.
        remedy: End of the message.

    Raises:
        ClrtError: Of class `kind`, for errors of the library. ClrtErrors of any class raised in the
            context pass through.
        TypeError, UnicodeError: Passed through, for wrong arguments.
    """
    try:
        yield
    except (ClrtError, TypeError, UnicodeError):
        raise
    except Exception as error:  # the library raises bare Exception
        raise kind(f"{what} ({error}); {remedy}.") from error
    except BaseException as error:  # pyo3's PanicException, which no module exports
        if type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what} ({error}); {remedy}.") from error


class _Check:
    """Walks the JSON of a tokenizer and checks each step, whatever its name.

    The library accepts several spellings of a step, so values are recognized by their keys.

    Attributes:
        growth: Product of the factors by which the steps checked so far may lengthen a text.
        is_slow: Whether a pattern is unknown, or the work of a step may grow faster than the text.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._steps = self._lengthening = self._put = 0
        self.growth = 1.0
        self.is_slow = False

    def component(self, value: object, where: str, depth: int) -> None:
        """Checks a component of the tokenizer, such as its normalizer, and the steps nested in it.

        Args:
            value: JSON value of the component or of a nested part.
            where: Name of the component: "normalizer".
            depth: Nesting depth of `value` in the component.

        Raises:
            ModelError: A limit is exceeded.
        """
        if depth > _MAX_DEPTH:
            raise self._wrong(where, f"nests more than {_MAX_DEPTH} levels")
        if isinstance(value, list):
            if len(value) > _MAX_ADDED:
                raise self._wrong(where, f"lists {len(value)} values, more than {_MAX_ADDED}")
            for each in value:
                self.component(each, where, depth + 1)
            return
        if not isinstance(value, Mapping):
            self._scalar(value, where)
            return
        self._steps += 1
        if self._steps > 16 * _MAX_ADDED:
            raise self._wrong(where, "has too many values")
        if where in ("normalizer", "decoder"):
            self._step(value, where)
        for key, inner in value.items():
            if key == "precompiled_charsmap" and inner is not None:
                self._charsmap(inner)
            elif key == "Regex":
                self._pattern(inner, where)
            else:
                self.component(inner, where, depth + 1)

    def _scalar(self, value: object, where: str) -> None:
        """Checks a string or number in a component of the tokenizer.

        Args:
            value: JSON value; other values than strings and numbers are ignored.
            where: Name of the component: "normalizer".

        Raises:
            ModelError: All strings together are too long, or a number is out of range.
        """
        if isinstance(value, str):
            self._put += len(value)
            if self._put > 16 * _MAX_CONTENT:
                raise self._wrong(where, f"has more than {16 * _MAX_CONTENT} characters of text")
        elif isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value <= _ID_LIMIT:
                raise self._wrong(where, f"has the number {value}, outside 0 to {_ID_LIMIT}")
        elif isinstance(value, float) and not abs(value) < inf:
            raise self._wrong(where, f"has the number {value}")

    def _step(self, value: Mapping[str, object], where: str) -> None:
        """Multiplies `growth` by the factor by which a step may lengthen a text.

        Args:
            value: JSON object of the step.
            where: "normalizer" or "decoder".

        Raises:
            ModelError: `growth`, the number of steps, or a length to strip exceeds its limit.
        """
        kind = value.get("type")
        if kind == "Sequence" or "normalizers" in value or "decoders" in value:
            return
        factor = float(_NORMAL_FORMS.get(str(kind), 1))
        pattern, content = value.get("pattern"), value.get("content")
        if isinstance(content, str) and pattern is not None:
            least = self._min_match_chars(pattern)
            factor = max(factor, 1.0 + len(content) if least == 0 else len(content) / least)
        for key in ("start", "stop", "length"):
            number = value.get(key)
            if isinstance(number, int) and number > _MAX_STRIPPED:
                raise self._wrong(where, f"has {key} {number}; the maximum is {_MAX_STRIPPED}")
        self.growth *= factor
        if self.growth > _MAX_GROWTH:
            raise self._wrong(
                where, f"may lengthen a text more than {_MAX_GROWTH} times by its replacements"
            )
        self._count(where)

    def _count(self, where: str) -> None:
        """Counts a step of the component `where`.

        Raises:
            ModelError: There are more than `_MAX_STEPS` steps.
        """
        self._lengthening += 1
        if self._lengthening > _MAX_STEPS:
            raise self._wrong(where, f"has more than {_MAX_STEPS} steps")

    def _min_match_chars(self, pattern: object) -> int:
        """Returns a lower bound of the number of characters that a pattern matches; 0 if unknown.

        Args:
            pattern: A string, {"String": text} or {"Regex": expression}.
        """
        if not isinstance(pattern, Mapping):
            return len(pattern) if isinstance(pattern, str) else 0
        if isinstance(text := pattern.get("String"), str):
            return len(text)
        text = pattern.get("Regex")
        if not isinstance(text, str) or len(text) > _MAX_PATTERN:
            return 0
        plain = re.sub(r"\\[pP]\{[^{}]*\}", "x", text)
        if _FOREIGN.search(_PLAIN_SETS.sub("x", plain)):
            return 0
        try:
            return int(_cannot_be_empty(plain))
        except (re.error, RecursionError, ValueError, OverflowError):
            return 0

    def _pattern(self, pattern: object, where: str) -> None:
        """Checks a regular expression of a component; sets `is_slow` if clrt does not know it.

        Args:
            pattern: JSON value of the expression.
            where: Name of the component. In a decoder, only known expressions are allowed.

        Raises:
            ModelError: The expression is too long, not a string, or not allowed.
        """
        if not isinstance(pattern, str) or len(pattern) > _MAX_PATTERN:
            raise self._wrong(where, f"has a pattern of more than {_MAX_PATTERN} characters")
        if where == "decoder" and pattern not in _KNOWN:
            raise self._wrong(
                where, f"has the pattern {pattern[:80]!r}, which clrt does not support"
            )
        self.is_slow |= pattern not in _KNOWN

    def _charsmap(self, value: object) -> None:
        """Checks SentencePiece's normalization table, and multiplies `growth` by its longest text.

        Args:
            value: The table in base64.

        Raises:
            ModelError: The table is damaged, or `growth` exceeds its limit.
        """
        try:
            raw = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
        except (binascii.Error, ValueError) as error:
            raise damaged(self._file, f"its precompiled_charsmap is not base64: {error}") from error
        longest = check_charsmap(raw, self._file, "precompiled_charsmap") if raw else 0
        self.growth *= max(1, longest)
        if self.growth > _MAX_GROWTH:
            raise self._wrong("normalizer", f"may lengthen a text more than {_MAX_GROWTH} times")

    def model(self, model: object) -> None:
        """Checks the tokenizer's model: token ids of its vocabulary, and lengths of its texts.

        Args:
            model: JSON value of the model; other values than objects are ignored.

        Raises:
            ModelError: An id or a length is out of range.
        """
        if not isinstance(model, Mapping):
            return
        vocabulary = model.get("vocab")
        if isinstance(vocabulary, Mapping):
            if not all(type(i) is int and 0 <= i < _ID_LIMIT for i in vocabulary.values()):
                raise self._wrong("model", f"has a token whose id is not within 0 to {_ID_LIMIT}")
            if "" in vocabulary and model.get("type") != "WordLevel":
                self.is_slow = True
        word = model.get("max_input_chars_per_word")
        self.is_slow |= isinstance(word, int) and word > _MAX_WORD
        for key in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
            text = model.get(key)
            if isinstance(text, str) and len(text) > _MAX_CONTENT:
                raise self._wrong("model", f"has a {key} of {len(text)} characters")

    def added(self, tokens: object) -> None:
        """Checks the ids of added tokens, and their total length after normalization.

        Args:
            tokens: JSON list of the added tokens; other values are ignored.

        Raises:
            ModelError: An id or the total length is out of range.
        """
        chars = 0
        for token in tokens if isinstance(tokens, list) else ():
            if not isinstance(token, Mapping):
                continue
            content = token.get("content")
            size = len(content) if isinstance(content, str) else 0
            chars += size
            # The library normalizes added tokens while it reads the file, which cannot be
            # interrupted.
            if chars * self.growth > _MAX_NORMALIZED or (self.is_slow and size > _MAX_TOKEN):
                raise self._wrong("added_tokens", "has too much text for its normalizer")
            number = token.get("id")
            if type(number) is not int or not 0 <= number <= _ID_LIMIT:
                number = repr(number)[:40]
                raise self._wrong("added_tokens", f"has the id {number}, not 0 to {_ID_LIMIT}")

    def _wrong(self, where: str, what: str) -> ModelError:
        return ModelError(
            f"The {where} of '{self._file}' {what}; download the model's own tokenizer.json."
        )


def _num_chars(text: str | Sequence[str]) -> int:
    """Returns the number of characters of a string, or of a pair of strings."""
    return len(text) if isinstance(text, str) else sum(map(len, text))


def _cannot_be_empty(pattern: str) -> bool:
    """Returns whether a Python regular expression never matches an empty string."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Only the parser computes match widths; its module name depends on the Python version.
        try:
            from re import _parser as parser  # type: ignore[attr-defined]
        except ImportError:
            import sre_parse as parser
    return int(parser.parse(pattern).getwidth()[0]) > 0


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object from its (key, value) pairs; rejects repeated keys.

    Vocabularies (objects of integers only) may repeat a key; the last value counts.

    Raises:
        ValueError: A key is repeated.
    """
    result = dict(pairs)
    if len(result) < len(pairs) and not all(type(value) is int for _, value in pairs):
        raise ValueError("a key is there twice")
    return result
