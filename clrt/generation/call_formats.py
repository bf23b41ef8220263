"""Tool call formats of known models, and their detection by the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clrt.errors import InputError, ModelError
from clrt.generation.chat_template import ChatTemplate
from clrt.generation.tool_calls import CallFormat, CallReader, ExpectedCalls

#: Known formats. The order counts: a format comes last if its start marker may begin an answer in
#: another format.
FORMATS = (
    CallFormat("<tool_call>", "</tool_call>"),  # Hermes, Qwen, SmolLM 3, Granite 4
    CallFormat("<tool_calls>", "</tool_calls>"),
    CallFormat("<|tool_call|>", "<|/tool_call|>"),  # Phi 4; Granite 3 without an end
    CallFormat("<seed:tool_call>", "</seed:tool_call>"),
    CallFormat("[TOOL_CALLS]", tokens=("[CALL_ID]", "[ARGS]")),  # Mistral
    CallFormat("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron
    CallFormat("<|START_ACTION|>", "<|END_ACTION|>"),  # Command R7B, Command A
    CallFormat(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        tokens=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
    ),  # DeepSeek and models distilled from it
    CallFormat("<|python_tag|>", is_bare=True),  # Llama 3
)
_NAME, _ARGUMENTS = "look_up", {"first": "value", "second": "other"}
_ASKED = "Which one?"
_PROPERTIES = {name: {"type": "string", "description": "A value."} for name in _ARGUMENTS}
_PARAMETERS = {"type": "object", "properties": _PROPERTIES, "required": list(_ARGUMENTS)}
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "Looks up.", "parameters": _PARAMETERS},
}
_USER = {"role": "user", "content": _ASKED}


def find_format(template: ChatTemplate) -> CallFormat | None:
    """Detects the format in which a model writes tool calls from its chat template.

    Renders an assistant message with an example call and parses it with each of `FORMATS`. If no
    format parses it, returns the first whose start marker occurs in the template's source.

    Returns:
        The format; None if the template matches none of `FORMATS`.
    """
    for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS)):
        written = _render_call(template, arguments)
        for one in FORMATS:
            if written is not None and _parses_call(one, *written):
                return replace(one, text_arguments=isinstance(arguments, str))
    return next((one for one in FORMATS if one.start in template.tool_source), None)


def _render_call(template: ChatTemplate, arguments: object) -> tuple[str, str] | None:
    """Renders a chat of a user's question and an assistant's example tool call.

    Args:
        template: Chat template of the model.
        arguments: Arguments of the call, as an object or as JSON text.

    Returns:
        The rendered text after the question, and the rendered text after the generation prompt (the
        start of the assistant message); None if the template rejects the chat.
    """
    call = {"name": _NAME, "arguments": arguments}
    calls = [{"id": "call00001", "type": "function", "function": call}]
    answer = {"role": "assistant", "content": "", "tool_calls": calls}
    try:
        begun = template.render([_USER], [_TOOL])
        whole = template.render([_USER, answer], [_TOOL], add_generation_prompt=False)
    except (InputError, ModelError):
        return None
    return whole.rpartition(_ASKED)[2], whole[_common_prefix(begun, whole) :]


def _common_prefix(one: str, other: str) -> int:
    """Returns the length of the common prefix of two strings."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))


def _parses_call(one: CallFormat, behind: str, answer: str) -> bool:
    """Whether a format parses the chat rendered by `_render_call` to exactly its example call.

    Args:
        one: The format.
        behind: Rendered text after the question.
        answer: Rendered text after the generation prompt; used if `behind` has no start marker.
    """
    text = behind if one.start in behind else answer
    if not one.end:  # drops the template's own end of turn
        text = text[: max(text.rfind("}"), text.rfind("]")) + 1]
    reader = CallReader(ExpectedCalls.of(one, [_TOOL]))
    reader.push(text)
    reader.finish()
    return [(call.name, call.arguments) for call in reader.calls] == [(_NAME, _ARGUMENTS)]


def with_text_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a copy of a message in which the arguments of tool calls are JSON strings.

    Returns the message itself if it has no tool calls.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_as_text(call) for call in calls]}


def _as_text(call: Any) -> Any:
    inner = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("arguments"), Mapping):
        return call
    text = json.dumps(inner["arguments"], ensure_ascii=False)
    return {**call, "function": {**inner, "arguments": text}}
