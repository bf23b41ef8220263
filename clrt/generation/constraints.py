"""Constrained decoding by a JSON schema, a regular expression or a grammar (llguidance)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError, UnsupportedError, explain_missing_extra
from clrt.util.dedicated_thread import call_in_thread

if TYPE_CHECKING:
    from llguidance import LLMatcher

T = TypeVar("T")
# Maximum length of llguidance's reason in a message, in characters.
_MAX_REASON_CHARS = 500
# Line of an llguidance report with the reason; other lines show the position.
_REASON = re.compile(r"^error: (.+)$", re.MULTILINE)


# llguidance recurses once per rule or subschema while it compiles, up to 4 KB each. These bounds
# leave a tenfold margin on its stack, and take some seconds for the slowest rules.
_MAX_CHARS = {"regex": 1 << 16, "grammar": 1 << 20, "json_schema": 1 << 20}
_MAX_RULES, _MAX_SUBSCHEMAS, _MAX_PATTERNS = 4000, 5000, 128
_STACK_BYTES = 256 << 20


class WrittenTokenizer(Protocol):
    """A tokenizer that can be serialized, such as a `tokenizers.Tokenizer`."""

    def to_str(self) -> str:
        """Returns the tokenizer as JSON text in the format of tokenizer.json."""


class ConstraintTokens:
    """Vocabulary of a model for constraints. Creating it takes up to a second, so reuse it.

    Attributes:
        size: Number of tokens in a mask of allowed tokens.
        eos: Token ids that end a text.

    Args:
        tokenizer: A `tokenizers.Tokenizer` whose tokens are bytes, with decoder ByteLevel or
            ByteFallback.
        eos: Token ids that end a text, at least one.
        size: Number of the model's logits, at least the number of tokens; None for the number of
            tokens.

    Raises:
        InputError: An id in `eos` is invalid, `eos` is empty, or there are fewer logits than
            tokens.
        UnsupportedError: llguidance is not installed, or does not support the tokenizer.
    """

    def __init__(
        self, tokenizer: WrittenTokenizer, eos: Iterable[int], size: int | None = None
    ) -> None:
        with explain_missing_extra("A constraint"):
            import llguidance
        self.eos = tuple(eos)
        if not self.eos or min(self.eos) < 0:
            raise InputError(f"eos is {list(self.eos)}; expected one or more ids of end tokens.")
        try:
            self.library = llguidance.LLTokenizer(
                tokenizer.to_str(), n_vocab=size, eos_token=list(self.eos)
            )
        except (OverflowError, ValueError) as error:
            if "decoder" in str(error):
                raise UnsupportedError(
                    "A constraint needs a tokenizer whose tokens are bytes, with the decoder "
                    "ByteLevel or ByteFallback; this tokenizer has another decoder."
                ) from error
            raise InputError(f"Constraints cannot use these tokens: {_reason(str(error))}.") from (
                error
            )
        self.size = self.library.vocab_size


class Constraint:
    """A rule that a generated text must match, and its state after the tokens accepted so far.

    Exactly one of `json_schema`, `regex` and `grammar` must be given. The rule must match the whole
    text.

    Args:
        tokens: Vocabulary of the model.
        json_schema: A JSON schema: a mapping, its text, or a pydantic model class.
        regex: A regular expression in the syntax of Rust's crate regex.
        grammar: A grammar in Lark or GBNF syntax.

    Raises:
        InputError: No rule or several are given, or the rule is invalid or too large.
        UnsupportedError: llguidance is not installed.
    """

    def __init__(
        self,
        tokens: ConstraintTokens,
        *,
        json_schema: object = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> None:
        with explain_missing_extra("A constraint"):
            import llguidance
        rules = {"json_schema": json_schema, "regex": regex, "grammar": grammar}
        rules = {name: value for name, value in rules.items() if value is not None}
        if len(rules) != 1:
            raise InputError(
                "A constraint is one of json_schema, regex and grammar; "
                f"{' and '.join(rules) or 'none'} {'are' if len(rules) > 1 else 'is'} given."
            )
        ((self._kind, value),) = rules.items()
        rule = _schema_text(value) if self._kind == "json_schema" else value
        if not isinstance(rule, str):
            raise InputError(f"The {self._kind} is {value!r}; expected a text.")
        _check_size(self._kind, rule)

        def compile_rule() -> LLMatcher:
            grammar_text = llguidance.grammar_from(self._kind, rule)  # type: ignore[arg-type]
            return llguidance.LLMatcher(tokens.library, grammar_text, log_level=0)

        try:
            self._matcher: LLMatcher = _on_deep_stack(compile_rule)
        except ValueError as error:
            raise self._invalid(str(error)) from error
        self.tokens = tokens
        self._ended = False
        if self._matcher.is_error():
            raise self._invalid(self._matcher.get_error())

    @property
    def is_met(self) -> bool:
        """Whether the text may end after the tokens accepted so far."""
        return self._ended or self._matcher.is_accepting()

    @property
    def is_done(self) -> bool:
        """Whether an end token was accepted, or the rule allows no further token."""
        return self._ended or (self._matcher.is_stopped() and not self._matcher.is_error())

    def allowed(self) -> NDArray[np.uint32]:
        """Returns a bit mask of the tokens allowed next, uint32 `[ceil(tokens.size / 32)]`.

        Token t is bit `t % 32` of word `t // 32`. End tokens are allowed if the text may end; after
        an end token only end tokens are. The array may be read-only.

        Raises:
            InputError: The rule takes too much work in this state.
        """
        words = (self.tokens.size + 31) // 32
        if self._ended:
            end_mask = np.zeros(words, np.uint32)
            ids = np.array(self.tokens.eos)
            np.bitwise_or.at(end_mask, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
            return end_mask
        self._check()
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        self._check()
        return mask[:words]  # the library returns one word more if the last word is full

    def accept(self, token: int) -> None:
        """Advances the state by a token. After an end token only end tokens are accepted.

        Raises:
            InputError: The token is not allowed, and the state stays unchanged; or the rule takes
                too much work.
        """
        if token in self.tokens.eos and self.is_met:
            self._ended = True
            return
        inside = 0 <= token < self.tokens.size and not self._ended
        if inside and self._matcher.try_consume_tokens([token]) == 1:
            return
        self._check()
        raise InputError(f"Token {token} violates the {self._kind}.")

    def forced(self) -> list[int]:
        """Returns the tokens that must follow by the rule; [] if it allows several next tokens.

        Also [] after an end token. The state does not change.

        Raises:
            InputError: The rule takes too much work.
        """
        if self._ended:
            return []
        self._check()
        return list(self._matcher.compute_ff_tokens())

    def copy(self) -> Constraint:
        """Returns an independent copy of the constraint with its state."""
        copied = object.__new__(Constraint)
        copied.__dict__.update(self.__dict__)
        copied._matcher = self._matcher.deep_copy()
        return copied

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InputError(
                f"The {self._kind} cannot be applied: {_reason(self._matcher.get_error())}."
            )

    def _invalid(self, text: str) -> InputError:
        return InputError(f"The {self._kind} is not valid: {_reason(text)}.")


def _check_size(kind: str, rule: str) -> None:
    """Checks that a rule is small enough for llguidance to compile it in bounded depth and time.

    Args:
        kind: Name of the constraint's argument: "json_schema", "regex" or "grammar".
        rule: Text of the rule.

    Raises:
        InputError: The rule is too long, or has too many grammar rules, subschemas or patterns.
    """
    if len(rule) > _MAX_CHARS[kind]:
        raise InputError(
            f"The {kind} has {len(rule)} characters; the maximum is {_MAX_CHARS[kind]}, so "
            "split it."
        )
    if kind == "grammar":
        rules = rule.replace("::", ":").count(":")  # an upper bound: each rule has one or more
        # A JSON schema may be embedded in a grammar.
        limit = _MAX_PATTERNS if "patternProperties" in rule else _MAX_RULES
        if rules > limit:
            raise InputError(
                f"The grammar has {rules} colons, one or more for each rule; the maximum is "
                f"{limit}, so leave rules out."
            )
    if kind == "json_schema":
        subschemas, patterns = rule.count("{") + rule.count("["), 0
        try:
            waiting = [json.loads(rule)]
        except RecursionError as error:
            raise InputError(f"The json_schema is not JSON: {_reason(str(error))}.") from error
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                matched = value.get("patternProperties")
                patterns += len(matched) if isinstance(matched, dict) else 0
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
        for count, limit, what in (
            (subschemas, _MAX_SUBSCHEMAS, "objects and lists"),
            (patterns, _MAX_PATTERNS, "patternProperties"),
        ):
            if count > limit:
                raise InputError(
                    f"The json_schema has {count} {what}; the maximum is {limit}, so simplify it."
                )


def _on_deep_stack(call: Callable[[], T]) -> T:
    """Runs `call()`, which compiles a rule, in a thread with a large stack; returns its result.

    Raises:
        InputError: The stack cannot be allocated.
        ValueError: The rule is not valid.
    """
    try:
        return call_in_thread(call, stack_bytes=_STACK_BYTES)
    except RuntimeError as error:
        raise InputError(f"A constraint needs a stack of {_STACK_BYTES} bytes: {error}.") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3's class, which no module exports
            raise
        raise ValueError(str(error)) from error


def _schema_text(value: object) -> str:
    """Returns a JSON schema as JSON text.

    Raises:
        InputError: The value is neither JSON, a mapping nor a pydantic model class.
    """
    maker = getattr(value, "model_json_schema", None)
    schema: Any = maker() if callable(maker) else value
    try:
        if isinstance(schema, str):
            schema = json.loads(schema)
        if isinstance(schema, Mapping):
            return json.dumps(dict(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"The json_schema is not JSON: {_reason(str(error))}.") from error
    raise InputError(f"The json_schema is {value!r}; expected a mapping, or its text.")


def _reason(text: str) -> str:
    """Returns the reason in an llguidance error report, at most 500 characters, for a message."""
    report = text.partition("\n<state>")[0]
    match = _REASON.search(report)
    first = match[1] if match else report.strip().partition("\n")[0]
    return first[:_MAX_REASON_CHARS].rstrip(" .:") or "no reason is given"
