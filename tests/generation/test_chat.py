"""Chats: cache reuse between turns, messages in files, and templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import clrt
from clrt.generation.chat import Chat
from clrt.generation.text_generator import TextGenerator
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from tests.generation.chats import CALL, RESULT, WEATHER
from tests.generation.text_folders import (
    END,
    computed,
    make_generator,
    pages_in_use,
    write_texts,
)
from tests.generation.tokenizers_of_tests import SPECIAL

WITHOUT_SPECIAL = dict.fromkeys(range(len(SPECIAL)), float("-inf"))
SYSTEM = "You answer briefly. The quick brown fox does not jump over the lazy dog."


def rendered(chat: Chat) -> str:
    """The chat so far as the template writes it."""
    model = chat._generator._model
    return model.chat_template.render(chat.messages, add_generation_prompt=False)


def test_messages_as_prompt_match_rendered_template(chatting: TextGenerator) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello"}]
    text = chatting._model.chat_template.render(messages)
    tokens = chatting.tokenizer.encode(text, add_special_tokens=False).ids
    found = chatting.generate(messages, max_new_tokens=8)
    assert found == chatting.generate(tokens, max_new_tokens=8)
    both = chatting.generate([messages, messages[1:]], max_new_tokens=8)
    assert both[0] == found and len(both) == 2
    with pytest.raises(clrt.InputError, match="role 7"):
        chatting.generate([{"role": 7}])


def test_chat_turn_computes_only_new_tokens(chatting: TextGenerator) -> None:
    chat = chatting.chat(SYSTEM, max_new_tokens=30, logit_bias=WITHOUT_SPECIAL)
    for turn in range(4):
        before = computed(chatting)
        answer = chat.send(f"Question {turn}?")
        ran = computed(chatting) - before - (len(answer.tokens) - 1)
        between = "<|im_end|>\n<|im_start|>user\nQuestion 0?<|im_end|>\n<|im_start|>assistant\n"
        if turn:  # what is new, and what the last page has before it
            assert ran <= len(chatting.tokenizer.encode(between).ids) + PAGE_TOKENS
            assert answer.prompt_tokens > ran + turn * PAGE_TOKENS
        assert answer.timings is not None and answer.timings.prompt_tokens == ran
    assert [message["role"] for message in chat.messages[:3]] == ["system", "user", "assistant"]
    assert len(chat.messages) == 9 and "9 messages" in repr(chat)


def test_chat_reuses_answer_tokens_in_next_prompt(chatting: TextGenerator) -> None:
    """Answer tokens are reused even if encoding the answer's text gives different tokens."""
    options: Any = {"temperature": 1.0, "seed": 8, "logit_bias": WITHOUT_SPECIAL}
    chat = chatting.chat(max_new_tokens=25, **options)
    first = chat.send("One")
    tokens: list[int] = []

    def noted(given: Any, *args: Any) -> Any:
        tokens.extend(given)
        return TextGenerator._stream(chatting, given, *args)

    chatting._stream = noted  # type: ignore[method-assign]
    try:
        chat.send("Two")
    finally:
        del chatting._stream
    assert list(first.tokens) == tokens[first.prompt_tokens :][: len(first.tokens)]
    text = chatting.tokenizer.decode(tokens, skip_special_tokens=False)
    assert first.text in text and text.endswith("<|im_start|>assistant\n")


def test_chat_reencodes_if_template_changes_answers(tmp_path: Path) -> None:
    """The template drops the answer's <think> part, so the chat is encoded again."""
    folder = write_texts(tmp_path, [END], template="qwen3")
    with make_generator(folder) as generator:
        chat = generator.chat(max_new_tokens=12)
        chat.send("One")
        chat.messages[-1]["content"] = "<think>\nHm.\n</think>\n\nTwo."
        chat.send("Three")
        assert "Hm." not in rendered(chat).partition("Three")[0]


def test_chat_stream_adds_answer_and_refuses_parallel_turn(chatting: TextGenerator) -> None:
    chat = chatting.chat(max_new_tokens=10)
    with chat.stream("Hello") as stream:
        text = "".join(stream)
    assert chat.messages[-1] == {"role": "assistant", "content": text}
    stream = chat.stream("More")
    next(stream)
    with pytest.raises(clrt.InputError, match="turn of this chat is in progress"):
        chat.send("Now")
    stream.close()
    assert chat.messages[-1]["content"] == stream.result.text
    assert len(chat.messages) == 4 and pages_in_use(chatting) == 0
    chat.send("Once more")
    chat.reset()
    assert chat.messages == []


def test_failed_chat_turn_leaves_messages_unchanged(chatting: TextGenerator) -> None:
    chat = chatting.chat(max_new_tokens=4)
    with pytest.raises(clrt.InputError, match="and the context 640"):
        chat.send("long " * 800)
    assert chat.messages == [] and chat.send("short").tokens


def test_chat_accepts_tool_results_as_turn(tmp_path: Path) -> None:
    folder = write_texts(tmp_path, [END], template="qwen25")
    with make_generator(folder, context=1200) as generator:
        chat = generator.chat(tools=[WEATHER], max_new_tokens=3)
        chat.messages += [{"role": "user", "content": "The weather?"}, CALL]
        answer = chat.send(RESULT)
        assert answer.prompt_tokens > 200
        assert [m["role"] for m in chat.messages] == ["user", "assistant", "tool", "assistant"]


def test_chat_saves_and_loads_messages(chatting: TextGenerator, tmp_path: Path) -> None:
    chat = chatting.chat(SYSTEM, max_new_tokens=5)
    chat.send("Größe, 日本語?")
    chat.save(tmp_path / "chat.json")
    other = chatting.chat(max_new_tokens=5)
    other.load(tmp_path / "chat.json")
    assert (
        other.messages == chat.messages == json.loads((tmp_path / "chat.json").read_text("utf-8"))
    )
    again = chatting.chat(max_new_tokens=5)
    again.messages = list(other.messages)
    assert other.send("And?") == again.send("And?")
    for text in ("{", "[]", '[{"content": 3}]', '{"role": "user"}'):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(clrt.InputError, match=r"wrong\.json' holds no chat messages"):
            other.load(tmp_path / "wrong.json")
    with pytest.raises(clrt.InputError, match="holds no chat messages"):
        other.load(tmp_path / "missing.json")
    chat.messages.append({"role": "user", "content": object()})
    with pytest.raises(clrt.InputError, match="are not JSON"):
        chat.save(tmp_path / "chat.json")


def test_chat_without_template_is_refused(endless: TextGenerator) -> None:
    with pytest.raises(clrt.InputError, match="has no chat template; give the prompt as text"):
        endless.chat()
