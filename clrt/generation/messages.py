"""Checks chat messages and copies them into plain objects for a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from clrt.errors import InputError

# Message keys for reasoning, by precedence. transformers passes the first two to templates.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
_MAX_DEPTH = 64


def plain_messages(messages: object) -> list[dict[str, Any]]:
    """Returns checked copies of chat messages for a chat template, without None values.

    Args:
        messages: List of mappings, each with a `role` and a `content`, which is a string or parts
            `{"type": "text", "text": …}`. A message with another entry, such as `tool_calls`, needs
            no content.

    Raises:
        InputError: There are no messages, or one is invalid.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InputError(
            f"The messages are {short(messages)}; expected a list of mappings such as "
            "{'role': 'user', 'content': 'Hello'}."
        )
    return [_message(message, k) for k, message in enumerate(messages)]


def _message(message: object, k: int) -> dict[str, Any]:
    """Returns message number `k` of a chat as a checked dict."""
    if not isinstance(message, Mapping):
        raise InputError(
            f"Message {k} is {short(message)}; expected a mapping with 'role' and 'content'."
        )
    entries = {key: x for key, x in message.items() if x is not None}
    role = entries.get("role")
    if not isinstance(role, str) or not role:
        raise InputError(f"Message {k} has the role {short(role)}; expected a text such as 'user'.")
    if not entries.keys() - {"role"}:
        raise InputError(f"Message {k} has no content; give it a text.")
    content = entries.get("content", "")
    if isinstance(content, Sequence) and not isinstance(content, str):
        for place, part in enumerate(content):
            _check_part(part, f"Part {place} of message {k}")
    elif not isinstance(content, str):
        raise InputError(f"The content of message {k} is {short(content)}; expected a text.")
    thought = next((entries[name] for name in _THOUGHTS if name in entries), None)
    if thought is not None:
        entries = {"thinking": thought, **entries, "reasoning_content": thought}
    return {str(key): plain_data(x, f"Message {k}") for key, x in entries.items()}


def _check_part(part: object, what: str) -> None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
        description = f"of type {short(kind)}" if isinstance(kind, str) else short(part)
        raise InputError(f"{what} is {description}; expected {{'type': 'text', 'text': …}}.")


def plain_tools(tools: object) -> list[Any] | None:
    """Returns copies of tools' JSON schemas for a chat template; None if `tools` is None.

    Raises:
        InputError: The tools are not a list of mappings, or hold other data than JSON.
    """
    if tools is None:
        return None
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise InputError(f"The tools are {short(tools)}; expected a list of JSON schemas.")
    for k, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InputError(
                f"Tool {k} is {short(tool)}; expected a JSON schema, a mapping such as "
                "{'type': 'function', 'function': {'name': …, 'parameters': …}}."
            )
    return [plain_data(tool, f"Tool {k}") for k, tool in enumerate(tools)]


def plain_data(value: object, what: str, depth: int = 0) -> object:
    """Returns a copy of JSON data in built-in types, since templates may call methods of values.

    Args:
        value: None, bool, number, string, list, tuple or mapping.
        what: Name of the data in error messages.
        depth: Nesting depth of `value`.

    Raises:
        InputError: The data hold another type, invalid Unicode, or are nested too deep.
    """
    if depth > _MAX_DEPTH:
        raise InputError(f"{what} is nested deeper than {_MAX_DEPTH} levels.")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return valid_text(value, what)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return {
            plain_data(key, what, depth + 1): plain_data(x, what, depth + 1)
            for key, x in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain_data(x, what, depth + 1) for x in value]
    raise InputError(f"{what} contains {short(value)}, which JSON cannot represent.")


def valid_text(value: str, what: str) -> str:
    """Returns a string as a plain `str`, not a subclass.

    Args:
        what: Name of the string in error messages.

    Raises:
        InputError: The string is not valid Unicode.
    """
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} is not valid Unicode: {error.reason} at character {error.start}."
        ) from error
    return str.__str__(value)


def short(value: object) -> str:
    """Returns the repr of a value for error messages, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}…"
