"""Tool calls parsed from generated text: template formats, streaming, and malformed calls."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

import clrt
from clrt.generation.call_formats import FORMATS, find_format
from clrt.generation.chat_template import ChatTemplate
from clrt.generation.generation_state import GenerationState
from clrt.generation.options import Sampling
from clrt.generation.result import GeneratedText, ToolCall
from clrt.generation.tool_calls import CallReader, ExpectedCalls, with_calls
from tests.generation.chats import CALL, CLOCK, LATER, RESULT, SPECIAL, TEMPLATES, WEATHER
from tests.generation.text_folders import END, make_generator, write_texts
from tests.generation.tokenizers_of_tests import byte_level
from tests.models.fixtures import DATA

BY_START = {one.start: one for one in FORMATS}
TOOLS = [WEATHER, CLOCK]
ARGUMENTS = {"city": "Köln", "days": [1, 2]}
WHERE = json.dumps(ARGUMENTS, ensure_ascii=False)
HERMES = f'<tool_call>\n{{"name": "weather", "arguments": {WHERE}}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
BARE = f'{{"name": "weather", "parameters": {WHERE}}}'
BOTH = [("weather", ARGUMENTS), ("clock", {})]
ONE = BOTH[:1]
TAGS = (
    "<function=weather>\n<parameter=city>\nKöln\n</parameter>\n"
    "<parameter=days>[1, 2]</parameter>\n</function>"
)


def reader(start: str) -> CallReader:
    return CallReader(ExpectedCalls.of(BY_START[start], TOOLS))


def found(calls: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in calls]


QWEN = ("assistant\n", "<|im_end|>")


@pytest.mark.parametrize(
    ("template", "start", "around"),
    [
        ("qwen25", "<tool_call>", QWEN),
        ("qwen3", "<tool_call>", QWEN),
        ("mistral", "[TOOL_CALLS]", ("[/INST]", "</s>")),
        ("llama31", "<|python_tag|>", ("assistant<|end_header_id|>\n\n", "<|eot_id|>")),
    ],
)
def test_tool_call_format_is_found_from_template(
    template: str, start: str, around: tuple[str, str]
) -> None:
    """The call that transformers renders by the template is parsed."""
    source = (TEMPLATES / f"{template}.jinja").read_text("utf-8")
    known = find_format(ChatTemplate(source, SPECIAL))
    assert known is not None and known.start == start
    text = json.loads((DATA / "chats.json").read_text("utf-8"))[f"{template}/called"]["text"]
    text = text.rpartition(LATER["content"])[2].partition(around[0])[2].partition(around[1])[0]
    made = with_calls(GeneratedText(text, (), "stop", 1), ExpectedCalls.of(known, TOOLS))
    assert found(made.tool_calls) == ONE and made.content == ""


@pytest.mark.parametrize("template", ["chatml", "gemma", "phi3", "odds"])
def test_template_without_tool_calls_has_no_format(template: str) -> None:
    source = (TEMPLATES / f"{template}.jinja").read_text("utf-8")
    assert find_format(ChatTemplate(source, SPECIAL)) is None


def test_template_with_text_arguments_is_detected() -> None:
    loop = "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ '%s' }}[ARGS]{{ %s }}{% endfor %}"
    call = loop.replace("'%s'", "c.function.name").replace("%s", "'' + c.function.arguments")
    source = "{% for m in messages %}{{ m.content }}" + call + "{% endfor %}"
    known = find_format(ChatTemplate(source))
    assert known is not None and known.text_arguments
    known = find_format(ChatTemplate("{{ messages[0].content }} Write <|tool_call|> and a list."))
    assert known == BY_START["<|tool_call|>"]


DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n%s\n```"
    "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>"
)
CALLS: list[tuple[str, str, list[tuple[str, dict[str, Any]]], str]] = [
    ("<tool_call>", HERMES, ONE, ""),
    ("<tool_call>", f"I look.\n{HERMES}\n{TIME}\n", BOTH, "I look.\n"),
    ("<tool_call>", HERMES.removesuffix("</tool_call>"), ONE, ""),
    ("<tool_call>", f"<tool_call> it is: {HERMES} Done.", ONE, "<tool_call> it is: Done."),
    ("<tool_call>", f"<tool_call>\n{TAGS}\n</tool_call>", ONE, ""),
    ("<tool_call>", f"<tool_call>[{BARE}]</tool_call>", ONE, ""),
    ("<seed:tool_call>", f"<seed:tool_call>{TAGS}</seed:tool_call>", ONE, ""),
    ("<tool_calls>", f"<tool_calls>\n{BARE}\n{BARE}\n</tool_calls>", ONE * 2, ""),
    ("<|tool_call|>", f"<|tool_call|>[{BARE}]<|/tool_call|>", ONE, ""),
    ("<|tool_call|>", f" <|tool_call|>[{BARE}]", ONE, " "),
    ("<TOOLCALL>", f"<TOOLCALL>[{BARE}]</TOOLCALL>", ONE, ""),
    (
        "<|START_ACTION|>",
        f'<|START_ACTION|>[\n{{"tool_call_id": "0", "tool_name": "weather", "parameters": {WHERE}}}'
        "\n]<|END_ACTION|>",
        ONE,
        "",
    ),
    ("[TOOL_CALLS]", f'[TOOL_CALLS] [{{"name": "weather", "arguments": {WHERE}}}]', ONE, ""),
    (
        "[TOOL_CALLS]",
        f"Hm.[TOOL_CALLS]weather[ARGS]{WHERE}[TOOL_CALLS]clock[ARGS]{{}}",
        BOTH,
        "Hm.",
    ),
    ("[TOOL_CALLS]", f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{WHERE}", ONE, ""),
    ("<｜tool▁calls▁begin｜>", DEEPSEEK % WHERE, BOTH, ""),
    ("<|python_tag|>", f"\n{BARE}", ONE, ""),
    ("<|python_tag|>", f'{BARE}; {{"name": "clock", "parameters": {{}}}}', BOTH, ""),
    ("<|python_tag|>", f"Sure.<|python_tag|>{BARE}", ONE, "Sure."),
    (
        "<|python_tag|>",
        json.dumps([{"function": {"name": "clock", "arguments": "{}"}}]),
        BOTH[1:],
        "",
    ),
]


@pytest.mark.parametrize(("start", "text", "wanted", "rest"), CALLS)
def test_tool_calls_of_each_format_are_parsed_in_pieces(
    start: str, text: str, wanted: Any, rest: str
) -> None:
    """Also in pieces; the text shown meanwhile never contains part of a call."""
    for step in (1, 2, 3, 7, len(text)):
        one, shown = reader(start), ""
        for at in range(0, len(text), step):
            shown += one.push(text[at : at + step])
            assert rest.startswith(shown)
        assert shown + one.finish() == rest and found(one.calls) == wanted
        assert one.finish() == "" and not one.is_holding


NONE: list[tuple[str, str]] = [
    ("<tool_call>", "Nothing to call."),
    ("<tool_call>", HERMES[:40]),
    ("<tool_call>", "<tool_call>weather(Köln)</tool_call> or not"),
    ("<tool_call>", "<tool_call></tool_call>"),
    ("<tool_call>", '<tool_call>{"name": "weather"}</tool_call>'),
    ("<tool_call>", '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>'),
    ("<tool_call>", '<tool_call>{"name": "weather", "arguments": "{} {}"}</tool_call>'),
    ("<tool_call>", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
    ("<tool_call>", '<tool_call>{"name": "a", "arguments": {"b": NaN}}</tool_call>'),
    ("<tool_call>", '<tool_call>{"name": "a", "arguments": {"b": 1e999}}</tool_call>'),
    ("<tool_call>", '<tool_call>{"name": "a", "arguments": {"b": "\\ud800"}}</tool_call>'),
    ("<tool_call>", f"<tool_call>{BARE} and more</tool_call>"),
    ("<tool_call>", "<tool_call><function=a><parameter=b>1</function></tool_call>"),
    ("<tool_call>", "<tool_ca"),
    ("[TOOL_CALLS]", "[TOOL_CALLS]weather[ARGS]{} and more"),
    ("[TOOL_CALLS]", "[TOOL_CALLS]weather{}"),
    ("<|python_tag|>", '{"name": "Ada", "parameters": {}}'),
    ("<|python_tag|>", f"The call is {BARE}"),
    ("<|python_tag|>", f"{BARE} That is all."),
    ("<|python_tag|>", "<|python_tag|>print(3)"),
    ("<|python_tag|>", " "),
]


@pytest.mark.parametrize(("start", "text"), NONE)
def test_malformed_tool_calls_stay_text(start: str, text: str) -> None:
    for step in (1, 5, len(text)):
        one = reader(start)
        pieces = [one.push(text[at : at + step]) for at in range(0, len(text), step)]
        assert "".join(pieces) + one.finish() == text and not one.calls
    expected = ExpectedCalls.of(BY_START[start], TOOLS)
    made = GeneratedText(text, (1,), "stop", 1)
    assert with_calls(made, expected) is made and with_calls(made, None) is made
    assert made.message == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 20_000 + "</tool_call>",
        ("<tool_call>" + "{" * 20) * 5_000,
        "<tool_call>" + '{"name": "a", "arguments": ' + '{"a":' * 50_000 + "</tool_call>",
        "<tool_call>" + "```" + " " * 200_000 + "x</tool_call>",
        "<tool_call>" + "a" * 200_000 + "</tool_call>",
        "<tool_call>" + "<function=a>" * 20_000 + "</tool_call>",
        "<tool_call>" + '{"name": "a", "arguments": {"n": ' + "9" * 100_000 + "}}</tool_call>",
    ],
)
def test_malicious_tool_call_text_is_parsed_in_bounded_time(text: str) -> None:
    started = time.perf_counter()
    one = reader("<tool_call>")
    assert one.push(text) + one.finish() == text
    assert time.perf_counter() - started < 2


def test_tool_call_ids_are_kept_or_made_unique() -> None:
    """New ids have nine letters and digits, as Mistral's template requires."""
    expected = ExpectedCalls.of(BY_START["[TOOL_CALLS]"], TOOLS)
    text = "[TOOL_CALLS]clock[CALL_ID]abcdefgh1[ARGS]{}[TOOL_CALLS]clock[CALL_ID]7[ARGS]{}"
    text += "[TOOL_CALLS]clock[ARGS]{}"
    made = with_calls(GeneratedText(text, (1, 2), "stop", 3), expected)
    first, *others = [call.id for call in made.tool_calls]
    assert first == "abcdefgh1" and len({first, *others}) == 3
    assert all(len(name) == 9 and name.isalnum() for name in others)
    assert made == with_calls(GeneratedText(text, (1, 2), "stop", 3), expected) and hash(made)
    assert made.message["tool_calls"][0] == {
        "id": "abcdefgh1",
        "type": "function",
        "function": {"name": "clock", "arguments": {}},
    }


def test_tool_call_special_tokens_are_kept_in_text() -> None:
    """Other special tokens are dropped, and all of them if no tools are given."""
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("[TOOL_CALLS]", "[ARGS]")])
    tokens = tokenizer.encode(f"<s>Hm.[TOOL_CALLS]weather[ARGS]{WHERE}").ids
    expected = ExpectedCalls.of(BY_START["[TOOL_CALLS]"], TOOLS)
    texts = []
    for calls in (expected, None):
        sampling = Sampling(max_new_tokens=99)
        answer = GenerationState.of(
            [1], sampling, 999, frozenset([END]), tokenizer, 99, calls=calls
        )
        for token in (*tokens, END):
            answer.take(token, 0.0, None, 99)
        texts.append(answer.result())
    assert texts[0].text == f"Hm.[TOOL_CALLS]weather[ARGS]{WHERE}"
    assert found(texts[0].tool_calls) == ONE and texts[0].content == "Hm."
    assert texts[1].text == f"Hm.weather{WHERE}" and texts[1].tool_calls == ()


def exactly(text: str) -> str:
    """A grammar of one text."""
    return f"start: {json.dumps(text, ensure_ascii=False)}"


def test_chat_parses_tool_calls_and_accepts_results(tmp_path: Path) -> None:
    folder = write_texts(tmp_path, [END], template="qwen25")
    text = f"I look.\n{HERMES}\n{TIME}"
    options: dict[str, Any] = {"grammar": exactly(text), "max_new_tokens": 200}
    with make_generator(folder, context=1600) as generator:
        chat = generator.chat(tools=TOOLS, **options)
        with chat.stream(LATER) as pieces:
            assert "".join(pieces) == "I look.\n"
        answer = pieces.result
        assert answer.text == text and answer.content == "I look."
        assert found(answer.tool_calls) == BOTH and isinstance(answer.tool_calls[0], ToolCall)
        assert chat.messages[1] == answer.message
        results = [{"role": "tool", "content": "7 °C"}, {"role": "tool", "content": "12:00"}]
        second = chat.send(results)
        assert [m["role"] for m in chat.messages[2:]] == ["tool", "tool", "assistant"]
        assert second.timings is not None and second.timings.prompt_tokens < answer.prompt_tokens
        prompt = generator._model.chat_template.render(chat.messages[:4], TOOLS)
        assert f"assistant\n{text}<|im_end|>\n<|im_start|>user\n<tool_response>\n7 °C" in prompt
        asked = generator.generate([[LATER], [LATER]], tools=TOOLS, **options)
        assert [found(one.tool_calls) for one in asked] == [BOTH, BOTH]
        plain = generator.generate([LATER], **options)
        assert plain.text == text and plain.tool_calls == () and plain.content is None
        cut = generator.stream([LATER], tools=TOOLS, grammar=exactly(text), max_new_tokens=30)
        assert "".join(cut) == cut.result.text != "" and not cut.result.tool_calls
        closed = generator.stream([LATER], tools=TOOLS, **options)
        assert next(closed)
        closed.close()
        assert list(closed) == []


@pytest.mark.parametrize(("template", "text"), [("llama31", BARE), ("mistral", CALLS[12][1])])
def test_tool_calls_round_trip_through_template(template: str, text: str, tmp_path: Path) -> None:
    folder = write_texts(tmp_path, [END], template=template)
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL))
    with make_generator(folder, context=1600) as generator:
        chat = generator.chat(tools=[WEATHER], grammar=exactly(text), max_new_tokens=120)
        answer = chat.send(LATER)
        assert found(answer.tool_calls) == ONE
        chat.send({**RESULT, "tool_call_id": answer.tool_calls[0].id})
        assert [m["role"] for m in chat.messages] == ["user", "assistant", "tool", "assistant"]
        assert chat.messages[1]["tool_calls"][0]["function"] == CALL["tool_calls"][0]["function"]


def test_astream_result_has_tool_calls(tmp_path: Path) -> None:
    import asyncio

    folder = write_texts(tmp_path, [END], template="qwen25")

    async def pieces(generator: clrt.TextGenerator) -> tuple[str, Any]:
        stream = generator.astream([LATER], tools=TOOLS, grammar=exactly(f"A {TIME}"))
        return "".join([piece async for piece in stream]), stream.result

    with make_generator(folder, context=1600) as generator:
        text, result = asyncio.run(pieces(generator))
        assert text == "A " and found(result.tool_calls) == BOTH[1:]
