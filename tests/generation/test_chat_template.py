"""Chat templates: rendering against transformers, and one-line errors."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.generation.chat_template import ChatTemplate, special_tokens
from tests.generation.chats import PLAIN, SPECIAL, TEMPLATES, WEATHER, cases
from tests.models.fixtures import DATA

ANSWERS = json.loads((DATA / "chats.json").read_text("utf-8"))
CASES = list(cases())


@pytest.mark.parametrize(
    ("name", "source", "messages", "options"), CASES, ids=[case[0] for case in CASES]
)
def test_chat_template_matches_transformers(
    name: str, source: str, messages: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    template = ChatTemplate(source, SPECIAL)
    wanted = ANSWERS[name]
    if "text" in wanted:
        assert template.render(messages, **options) == wanted["text"]
    else:
        with pytest.raises(InputError) as raised:
            template.render(messages, **options)
        assert wanted["error"].removesuffix(".") in str(raised.value)


def test_chat_template_cases_cover_all_oracle_answers() -> None:
    assert ANSWERS.keys() == {case[0] for case in CASES}


def test_chat_template_strftime_now_gives_current_year() -> None:
    made = ChatTemplate("{{ strftime_now('%Y') }}").render(PLAIN)
    assert abs(int(made) - datetime.now().year) <= 1


def test_chat_template_adds_thinking_without_changing_messages() -> None:
    message = {"role": "user", "content": "a", "name": None, "reasoning": "r", "n": np.int64(3)}
    source = "{{ messages | tojson }}"
    wanted = {
        **{"thinking": "r", "role": "user", "content": "a", "reasoning": "r", "n": 3},
        "reasoning_content": "r",
    }
    assert json.loads(ChatTemplate(source).render([message])) == [wanted]
    assert message["name"] is None and len(message) == 5


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "The messages are []; expected a list of mappings"),
        ("hello", "The messages are 'hello'; expected a list of mappings"),
        ({"role": "user"}, "expected a list of mappings"),
        (["hello"], "Message 0 is 'hello'; expected a mapping with 'role' and 'content'."),
        ([{"content": "a"}], "Message 0 has the role None; expected a text such as 'user'."),
        ([{"role": "user"}], "Message 0 has no content; give it a text."),
        ([{"role": "user", "content": 3}], "The content of message 0 is 3; expected a text."),
        ([{"role": "user", "content": "\ud800"}], "Message 0 is not valid Unicode"),
        ([{"role": "user", "content": "a", "x": object}], "Message 0 contains <class 'object'>,"),
        (
            [{"role": "user", "content": [{"type": "image", "url": "x"}]}],
            "Part 0 of message 0 is of type 'image'; expected {'type': 'text', 'text': …}.",
        ),
        ([{"role": "user", "content": ["a"]}], "Part 0 of message 0 is 'a'; expected"),
        ([{"role": "user", "content": "x", "y": ["z" * 999, 1j]}], "Message 0 contains 1j,"),
    ],
)
def test_invalid_chat_messages_are_refused(messages: Any, said: str) -> None:
    with pytest.raises(InputError) as raised:
        ChatTemplate("").render(messages)
    assert str(raised.value).startswith(said) or said in str(raised.value)


def test_invalid_chat_tools_and_variables_are_refused() -> None:
    template = ChatTemplate("")
    for tools, said in (("x", "The tools are 'x'"), ([print], "Tool 0 is <built-in function")):
        with pytest.raises(InputError, match=said):
            template.render(PLAIN, tools)
    with pytest.raises(InputError, match="The variable x contains"):
        template.render(PLAIN, x=print)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InputError, match="The variable x is nested deeper than 64 levels"):
        template.render(PLAIN, x=endless)


def _folder(path: Path, config: object = None, **files: str) -> Path:
    (path / "additional_chat_templates").mkdir()
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    for name, source in files.items():
        place = "" if name == "chat_template" else "additional_chat_templates/"
        (path / f"{place}{name}.jinja").write_text(source, "utf-8")
    return path


def test_chat_template_files_take_precedence_over_config(tmp_path: Path) -> None:
    config = {"chat_template": "old", "bos_token": {"content": "<s>"}, "eos_token": None}
    _folder(tmp_path, config, chat_template="{{ bos_token }}{{ eos_token }}", tool_use="T", rag="R")
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    template = ChatTemplate.from_folder(tmp_path)
    assert special_tokens(tmp_path) == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (template.render(PLAIN), template.render(PLAIN, [WEATHER])) == ("<s></s>", "T")
    assert ChatTemplate.from_folder(tmp_path, "rag").render(PLAIN, [WEATHER]) == "R"
    with pytest.raises(InputError, match=r"no chat template 'x'; it has 'default', 'rag', 'tool"):
        ChatTemplate.from_folder(tmp_path, "x")


def test_chat_template_is_read_from_tokenizer_config(tmp_path: Path) -> None:
    _folder(tmp_path, {"chat_template": "{{ messages[0].role }}"})
    assert ChatTemplate.from_folder(tmp_path).render(PLAIN) == "user"
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.from_folder(tmp_path).render(PLAIN) == "D"
    assert ChatTemplate.from_folder(tmp_path).render(PLAIN, [WEATHER]) == "T"


@pytest.mark.parametrize("wrong", [3, [3], [{"name": "default"}], {"default": "x"}])
def test_invalid_chat_template_config_is_refused(tmp_path: Path, wrong: object) -> None:
    _folder(tmp_path, {"chat_template": wrong})
    with pytest.raises(ModelError, match=r"tokenizer_config\.json' has a chat_template that is"):
        ChatTemplate.from_folder(tmp_path)


def test_missing_chat_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no chat template, neither"):
        ChatTemplate.from_folder(_folder(tmp_path, {}))
    with pytest.raises(InputError, match="has no chat template 'default'; it has 'rag'"):
        ChatTemplate.from_folder(_folder_of(tmp_path, "rag"))


def _folder_of(path: Path, name: str) -> Path:
    (path / "additional_chat_templates" / f"{name}.jinja").write_text("x")
    return path


def test_chat_template_errors_name_file_and_line(tmp_path: Path) -> None:
    _folder(tmp_path, chat_template="\n{% for x in %}")
    file = tmp_path / "chat_template.jinja"
    with pytest.raises(ModelError) as raised:
        ChatTemplate.from_folder(tmp_path)
    assert str(raised.value).startswith(f"'{file}' is not a valid template: error at line 2: ")
    file.write_text("\n\n{{ messages[0].x.y }}")
    with pytest.raises(InputError) as failed:
        ChatTemplate.from_folder(tmp_path).render(PLAIN)
    assert str(failed.value) == (
        f"'{file}' fails at line 3: 'dict object' has no attribute 'x'; check that the "
        "messages have all keys that it uses."
    )
    file.write_text("{{ raise_exception('No\n  more!') }}")
    with pytest.raises(InputError) as refused:
        ChatTemplate.from_folder(tmp_path).render(PLAIN)
    assert str(refused.value) == f"'{file}' rejects these messages: No more!."


def test_chat_template_without_jinja2_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    ChatTemplate("")  # imports what the next lines take away
    monkeypatch.delattr("clrt.generation.sandbox")
    monkeypatch.delitem(sys.modules, "clrt.generation.sandbox")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        UnsupportedError, match=r'pip install "jinja2>=3.1.6".*its extra .generate.'
    ):
        ChatTemplate("")


def test_known_templates_render_long_chats_within_limits() -> None:
    """2000 messages and 100 tools."""
    chat = [m for k in range(1000) for m in ({"role": "user", "content": f"{k} " * 50}, PLAIN[1])]
    tools = [WEATHER] * 100
    for file in TEMPLATES.glob("*.jinja"):
        text = ChatTemplate(file.read_text("utf-8"), SPECIAL).render(chat, tools)
        assert "999 " in text or file.stem == "odds"
