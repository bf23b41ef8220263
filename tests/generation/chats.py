"""Chats and the templates that render them; transformers' results are in tests/models/data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "data"
SPECIAL = {"bos_token": "<|begin|>", "eos_token": "</s>"}

USER = {"role": "user", "content": '  What\'s <b>5 & 7</b> – "é"?\n'}
LATER = {"role": "user", "content": "And in Köln, 東京 🎉?"}
SYSTEM = {"role": "system", "content": "Answer briefly."}
ANSWER = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nTwelve. "}
PLAIN = [USER, ANSWER, LATER]

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.\nToday's.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name, e.g. 'Köln'"},
                "unit": {"type": "string", "enum": ["°C", "°F"]},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}},
    },
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}},
        }
    ],
}
RESULT = {"role": "tool", "content": '{"temp": 7.5}', "tool_call_id": "call00001"}
THOUGHT = {"role": "assistant", "content": "7.5 °C.", "reasoning_content": "\nIt is cold.\n"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}

CHATS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "closed": ([*PLAIN, ANSWER], {"add_generation_prompt": False}),
    "system": ([SYSTEM, *PLAIN], {}),
    "tools": ([SYSTEM, LATER], {"tools": [WEATHER, CLOCK]}),
    "called": ([LATER, CALL, RESULT, THOUGHT, USER], {"tools": [WEATHER]}),
    "result": ([LATER, CALL, RESULT], {"tools": [WEATHER]}),
    "no_thinking": (PLAIN, {"enable_thinking": False}),
    "builtin": ([LATER], {"builtin_tools": ["code_interpreter", "search"]}),
    "system_tools": ([SYSTEM, LATER], {"tools": [CLOCK], "tools_in_user_message": False}),
    "parts": ([PARTS], {}),
    "two_users": ([USER, LATER], {}),
}
DATE = "24 Jul 2025"


def cases() -> Iterator[tuple[str, str, list[dict[str, Any]], dict[str, Any]]]:
    """Name, template, messages and options of each case."""
    for file in sorted(TEMPLATES.glob("*.jinja")):
        source = file.read_text("utf-8")
        for name, (messages, options) in CHATS.items():
            yield f"{file.stem}/{name}", source, messages, {"date_string": DATE, **options}


def transformers_answers() -> dict[str, dict[str, str]]:
    """What transformers makes of each case: a text, or what the template says against it."""
    from jinja2 import TemplateError
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    library = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=library, **SPECIAL)
    made = {}
    for name, source, messages, options in cases():
        options.setdefault("add_generation_prompt", True)
        try:
            text = tokenizer.apply_chat_template(
                messages, chat_template=source, tokenize=False, **options
            )
            made[name] = {"text": text}
        except (TemplateError, TypeError) as error:
            made[name] = {"error": str(error)}
    return made
