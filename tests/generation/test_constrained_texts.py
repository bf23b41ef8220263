"""Text generation constrained by JSON schemas, regular expressions and grammars."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import clrt
from clrt.generation.engine import DecoderEngine
from clrt.generation.text_generator import TextGenerator
from tests.generation.test_constraints import SCHEMA, Model
from tests.generation.text_folders import make_generator, pages_in_use, write_texts


def test_generated_json_matches_schema(chatting: TextGenerator) -> None:
    """Several texts at a time."""
    options = {"temperature": 1.0, "seed": 5, "max_new_tokens": 200}
    found = chatting.generate(["a", "b", "c"], json_schema=SCHEMA, **options)
    for text in found:
        made = json.loads(text.text)
        assert set(made) <= {"name", "age", "tags"} and 0 <= made["age"] <= 150
        assert text.finish_reason in ("stop", "constraint")
    assert chatting.generate("a", json_schema=Model, **options) == found[0]
    assert chatting.generate("a", json_schema=json.dumps(SCHEMA), **options) == found[0]


def test_forced_tokens_are_generated_without_sampling_steps(
    chatting: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps = DecoderEngine.step, []

    def counted(engine: DecoderEngine, *args: Any) -> Any:
        steps.append(1)
        return step(engine, *args)

    monkeypatch.setattr(DecoderEngine, "step", counted)
    rule = r"The quick brown fox (jumps|sleeps)\. The lazy dog does, too\."
    found = chatting.generate("x", regex=rule, max_new_tokens=99)
    assert re.fullmatch(rule, found.text) and found.finish_reason in ("stop", "constraint")
    assert len(found.tokens) > 2 * len(steps)
    assert chatting.tokenizer.decode(list(found.tokens)) == found.text
    steps.clear()
    told = chatting.generate("x", regex=rule, max_new_tokens=99, logprobs=1)
    assert len(told.logprobs) == len(told.tokens) == len(steps)
    short = chatting.generate("x", regex=rule, max_new_tokens=7)
    assert len(short.tokens) == 7 and short.finish_reason == "length"
    assert found.text.startswith(short.text)


def test_generated_text_matches_regex_and_grammar(chatting: TextGenerator) -> None:
    streams = [
        chatting.stream("x", regex=r"[0-9]{3}-[a-f]{2}", max_new_tokens=40),
        chatting.stream("x", max_new_tokens=12),
        chatting.stream("x", grammar='start: ("yes" | "no") "!"', max_new_tokens=40),
    ]
    texts = [stream.result.text for stream in streams]
    assert re.fullmatch(r"[0-9]{3}-[a-f]{2}", texts[0]) and texts[2] in ("yes!", "no!")
    assert chatting.generate("x", max_new_tokens=12).text == texts[1]
    chat = chatting.chat(regex="[a-c]{4}")
    assert re.fullmatch("[a-c]{4}", chat.send("Which?").text)
    drawn = chatting.generate("x", regex="[a-z]{9}", num_return_sequences=3, temperature=1.0)
    assert all(re.fullmatch("[a-z]{9}", text.text) for text in drawn)
    assert pages_in_use(chatting) == 0


def test_invalid_constraint_is_refused_by_generator(
    chatting: TextGenerator, endless: TextGenerator
) -> None:
    for rule in ({"regex": "("}, {"grammar": "start: zzz"}, {"json_schema": {"type": "zzz"}}):
        with pytest.raises(clrt.InputError, match=f"The {next(iter(rule))} is not valid"):
            chatting.generate("x", **rule)
    with pytest.raises(clrt.InputError, match="has no token that ends a text"):
        endless.generate("x", regex="a")


def test_end_token_is_forbidden_until_regex_matches(tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    """Until the regex matches, end tokens have probability 0, however likely they are."""
    folder = write_texts(tmp_path_factory.mktemp("ends"), [7])
    with make_generator(folder) as generator:
        found = generator.generate("x", regex="a{5,}", logit_bias={7: 1e6})
        assert found.text == "aaaaa" and found.finish_reason == "stop"
