"""Parses tool calls in generated text, complete or streamed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from hashlib import blake2b
from typing import Any, NoReturn

from clrt.errors import InputError
from clrt.generation.messages import plain_data
from clrt.generation.result import GeneratedText, ToolCall
from clrt.util.fast_dataclass import dataclass

_NAMES, _ARGUMENTS, _IDS = (
    ("name", "tool_name"),
    ("arguments", "parameters"),
    ("id", "tool_call_id"),
)
# Ids that all templates accept: Mistral's requires exactly this form.
_ID = re.compile(r"[A-Za-z0-9]{9}", re.ASCII)
# Separators between and around JSON calls.
_SEPARATORS = re.compile(r"[\s;,]*")
_PARTS = re.compile(r"<｜tool▁call▁(?:begin|end)｜>")
# A function name before JSON arguments: Mistral since 2025, and DeepSeek.
_NAMED = re.compile(
    r"\s*(?:function<｜tool▁sep｜>)?(?P<name>[\w.-]+)\s*"
    r"(?:(?:\[CALL_ID\](?P<id>\w+))?\[ARGS\]|<｜tool▁sep｜>|(?=```))(?P<json>.*)",
    re.DOTALL,
)
_FUNCTION = re.compile(r"\s*<function=(?P<name>[^<>\s]+)>(?P<inner>.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(
    r"\s*<parameter=(?P<name>[^<>\s]+)>(?P<value>.*?)</parameter>\s*", re.DOTALL
)


@dataclass(frozen=True)
class CallFormat:
    """Format in which a model writes tool calls: markers around JSON or tags.

    Attributes:
        start: Start marker: text before a call or list of calls.
        end: End marker: text after a call or list of calls; "" if calls run to the answer's end.
        is_bare: Whether JSON without start marker counts as calls, if it names known functions.
        tokens: Special tokens that occur within calls.
        text_arguments: Whether the chat template takes arguments as JSON strings, not as objects.
    """

    start: str
    end: str = ""
    is_bare: bool = False
    tokens: tuple[str, ...] = ()
    text_arguments: bool = False

    @property
    def kept_tokens(self) -> frozenset[str]:
        """Markers and special tokens of calls, whose text the detokenizer must keep for parsing."""
        return frozenset({self.start, self.end, *self.tokens} - {""})


@dataclass(frozen=True)
class ExpectedCalls:
    """Format and tools of the tool calls that a generated text may have.

    Attributes:
        format: Format in which the model writes calls.
        tools: For each function name, the JSON schema of each parameter by name.
    """

    format: CallFormat
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, call_format: CallFormat, tools: Sequence[Any]) -> ExpectedCalls:
        """Creates the expected calls of a request.

        Args:
            call_format: Format in which the model writes calls.
            tools: JSON schemas of the functions that the model may call.
        """
        properties = {}
        for tool in tools:
            inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
                continue
            parameters = inner.get("parameters")
            schemas = parameters.get("properties") if isinstance(parameters, Mapping) else None
            properties[inner["name"]] = schemas if isinstance(schemas, Mapping) else {}
        return cls(call_format, properties)

    def read(self, body: str, is_bare: bool = False) -> list[ToolCall]:
        """Parses the tool calls between markers; returns [] if any of the text is not a call.

        Args:
            body: Text between the start and end markers.
            is_bare: Whether `body` had no start marker; calls must then name known functions.
        """
        parsed: list[ToolCall] = []
        # Without an end marker a section runs to the next start marker.
        each = [body] if self.format.end else body.split(self.format.start)
        for text in (text for part in each for text in _PARTS.split(part) if text.strip()):
            calls = self._functions(text) or _parse_named(text) or _parse_json(text)
            if not calls:
                return []
            parsed += calls
        return [] if is_bare and any(c.name not in self.tools for c in parsed) else parsed

    def _functions(self, text: str) -> list[ToolCall]:
        """Parses calls written as `<function=…>` tags that hold `<parameter=…>` tags or JSON.

        Returns [] if the text has any other form.
        """
        calls, at = [], 0
        while match := _FUNCTION.match(text, at):
            name, inner, at = match["name"], match["inner"], match.end()
            if (whole := _json_object(inner)) is not None:
                calls.append(ToolCall(name, whole))
                continue
            arguments: dict[str, Any] = {}
            position = 0
            while parameter := _PARAMETER.match(inner, position):
                position = parameter.end()
                arguments[parameter["name"]] = self._value(name, parameter)
            if inner[position:].strip():
                return []
            calls.append(ToolCall(name, arguments))
        return calls if at == len(text) else []

    def _value(self, function: str, parameter: re.Match[str]) -> Any:
        """Returns the value of a `<parameter=…>` tag: JSON, or text if the schema allows strings.

        Args:
            function: Name of the function.
            parameter: Match of `_PARAMETER` on the tag.
        """
        text = parameter["value"].removeprefix("\n").removesuffix("\n")
        schema = self.tools.get(function, {}).get(parameter["name"])
        kind = schema.get("type", "string") if isinstance(schema, Mapping) else "string"
        is_text = "string" in (kind if isinstance(kind, list | tuple) else [kind])
        values = [] if is_text else _json_values(text)
        return values[0] if len(values) == 1 else text


class CallReader:
    """Separates tool calls from streamed text.

    Text from a start marker to the end marker is buffered, and returned as ordinary text if it is
    not a call.

    Attributes:
        calls: Calls parsed so far.
    """

    def __init__(self, expected: ExpectedCalls) -> None:
        self.calls: list[ToolCall] = []
        self._expected, self._format = expected, expected.format
        self._buffer = ""
        # Offset in the buffer from which to search for the end marker; None outside a call section.
        self._searched: int | None = None
        self._is_first = expected.format.is_bare
        self._is_bare = self._skips = False

    @property
    def is_holding(self) -> bool:
        """Whether text is buffered that may be part of a call."""
        return bool(self._buffer)

    def push(self, text: str) -> str:
        """Adds a text chunk; returns the text that certainly is not part of a call, "" if none."""
        self._buffer += text
        shown = []
        while self._buffer:
            if self._searched is None:
                shown.append(self._plain())
            part = None if self._searched is None else self._call()
            if part is None:
                break
            shown.append(part)
        return "".join(shown)

    def finish(self) -> str:
        """Ends the text: parses the buffered text, and returns the part that is not a call."""
        section, self._buffer = self._buffer, ""
        if self._searched is None:
            return section.lstrip() if self._skips else section
        self._searched = None
        return self._read(section, len(section))

    def _plain(self) -> str:
        """Removes and returns the buffered text before a start marker, complete or just begun.

        Returns "" if the buffer begins with a start marker or with bare JSON.
        """
        if self._skips or self._is_first:
            rest = self._buffer.lstrip()
            if not rest:
                return ""
            if self._is_first and rest[0] in "{[":
                self._is_first, self._is_bare, self._searched = False, True, 0
                return ""
            self._is_first = False
            if self._skips:
                self._buffer, self._skips = rest, False
        start = self._format.start
        at = self._buffer.find(start)
        if at >= 0:
            self._searched = len(start)
        else:
            max_prefix = min(len(start) - 1, len(self._buffer))
            prefix = next(
                (n for n in range(max_prefix, 0, -1) if self._buffer.endswith(start[:n])), 0
            )
            at = len(self._buffer) - prefix
        shown, self._buffer = self._buffer[:at], self._buffer[at:]
        return shown

    def _call(self) -> str | None:
        """Parses the buffered text up to the end marker; returns the part that is not a call.

        Returns None if the buffer has no end marker yet.
        """
        end, searched = self._format.end, self._searched or 0
        at = self._buffer.find(end, searched) if end else -1
        if at < 0:
            self._searched = max(searched, len(self._buffer) - len(end) + 1)
            return None
        section, self._buffer = self._buffer[: at + len(end)], self._buffer[at + len(end) :]
        self._searched = None
        return self._read(section, at)

    def _read(self, section: str, end: int) -> str:
        """Parses buffered text and appends its calls; returns the part that is not a call.

        Args:
            section: Text from the start marker on, with the end marker if there is one.
            end: Offset of the end marker in `section`; its length if there is none.
        """
        start = self._format.start
        # Ordinary text may mention the start marker before the call itself.
        starts = {len(start), section.rfind(start, 0, end) + len(start)}
        for at in (0,) if self._is_bare else sorted(starts):
            calls = self._expected.read(section[at:end], self._is_bare)
            if calls:
                self.calls += calls
                self._skips = True
                return section[: at - len(start)] if at else ""
        self._is_bare = False
        return section


def with_calls(result: GeneratedText, expected: ExpectedCalls | None) -> GeneratedText:
    """Returns a generated text with its tool calls parsed and `content` set.

    Calls without a valid id get one. Returns `result` unchanged if `expected` is None or the text
    has no calls.
    """
    if expected is None:
        return result
    reader = CallReader(expected)
    content = (reader.push(result.text) + reader.finish()).strip()
    if not reader.calls:
        return result
    about = repr((result.prompt_tokens, result.tokens)).encode()
    ids = [blake2b(about, salt=b"%d" % k).hexdigest()[:9] for k in range(len(reader.calls))]
    named = [
        call if _ID.fullmatch(call.id) else replace(call, id=call_id)
        for call, call_id in zip(reader.calls, ids, strict=True)
    ]
    return replace(result, tool_calls=tuple(named), content=content)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    """Parses a JSON number; raises ValueError if it is too large for a float, such as 1e999."""
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)


def _json_values(text: str) -> list[Any]:
    """Parses consecutive JSON values, separated by spaces, commas or semicolons; [] if invalid.

    The values may be in a Markdown code block.
    """
    text = text.strip()
    if text.startswith("```"):
        text = text.removeprefix("```").removeprefix("json").removesuffix("```")
    values = []
    at = _end(_SEPARATORS, text, 0)
    while at < len(text):
        try:
            value, at = _DECODER.raw_decode(text, at)
            values.append(plain_data(value, "A call"))
        except (ValueError, RecursionError, InputError):
            return []
        at = _end(_SEPARATORS, text, at)
    return values


def _json_object(text: str) -> dict[str, Any] | None:
    """Parses text that consists of one JSON object; returns None for other text."""
    values = _json_values(text)
    return values[0] if len(values) == 1 and isinstance(values[0], dict) else None


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Returns the index after a match of `pattern` that starts at `at`; `at` if there is none."""
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _parse_json(text: str) -> list[ToolCall]:
    """Parses tool calls written as JSON objects or lists of them; [] if any value is no call."""
    values = _json_values(text)
    if len(values) == 1 and isinstance(values[0], list):
        (values,) = values
    calls = [_call(value) for value in values]
    return [call for call in calls if call] if all(calls) else []


def _call(value: object) -> ToolCall | None:
    """Returns the tool call of a parsed JSON value; None if it is not one."""
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    inner = inner if isinstance(inner, dict) else value
    name, arguments = _first(inner, _NAMES), _first(inner, _ARGUMENTS)
    if isinstance(arguments, str):
        arguments = _json_object(arguments)
    id_ = _first(value, _IDS)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, arguments, id_ if isinstance(id_, str) else "")


def _first(value: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((value[name] for name in names if name in value), None)


def _parse_named(text: str) -> list[ToolCall]:
    """Parses a tool call whose name precedes its JSON arguments; [] for text of another form."""
    match = _NAMED.fullmatch(text)
    if match is None:
        return []
    arguments = _json_object(match["json"])
    return [ToolCall(match["name"], arguments, match["id"] or "")] if arguments is not None else []
